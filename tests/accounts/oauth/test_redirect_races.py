"""Two members of staff, or an owner and one of them, change redirect URIs or providers at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from accounts import audit
from accounts.models import AuditEntry
from accounts.oauth import providers, redirects
from platform_site.http.errors import QuotaExceeded
from tests.accounts.oauth.conftest import add
from tests.support.concurrency import in_thread, wait_until, waiting_for_locks

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


def test_concurrent_changes_of_providers_are_not_lost() -> None:
    redirects.replace(None, ["https://old.example/"], actor=audit.SYSTEM)
    together = threading.Barrier(8)

    def change(number: int) -> None:
        together.wait(30)
        try:
            if number:
                redirects.add(None, f"https://app{number}.example/", actor=audit.SYSTEM)
            else:
                redirects.remove(None, "https://old.example/", actor=audit.SYSTEM)
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(change, range(8)))
    assert redirects.of(None) == [f"https://app{number}.example/" for number in range(1, 8)]
    changes = AuditEntry.objects.filter(action="redirect_uris.changed")
    assert sum(len(entry.detail["removed"]) for entry in changes) == 1


def test_of_two_lists_at_once_the_later_one_stays() -> None:
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            redirects.replace(None, ["https://one.example/"], actor=audit.SYSTEM)
            other = pool.submit(
                in_thread, lambda: redirects.replace(None, ["https://two.example/"], actor=audit.SYSTEM)
            )
            wait_until(lambda: other.done() or waiting_for_locks("default") > 0)
        assert other.result(30) == redirects.of(None) == ["https://two.example/"]


def test_two_providers_at_once_do_not_exceed_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "MAX_PROVIDERS", 1)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            add(None, "one", issuer="https://one.example")
            other = pool.submit(in_thread, lambda: add(None, "two", issuer="https://two.example"))
            wait_until(lambda: other.done() or waiting_for_locks("default") > 0)
        assert isinstance(other.result(30), QuotaExceeded)
