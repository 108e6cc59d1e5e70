from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import transaction

from platform_site.postgres import statements

LOCK_TIMEOUT_MS: Final = 10_000
_SET: Final = "SELECT set_config(name, value, true) FROM unnest(%s::text[], %s::text[]) _s (name, value)"
_READ: Final = "SELECT name, current_setting(name) FROM unnest(%s::text[]) _s (name)"


def set_local(using: str, **values: str) -> None:
    """Until the transaction ends."""
    statements.execute(using, _SET, [list(values), list(values.values())])


@contextmanager
def changed(using: str, **values: str) -> Iterator[None]:
    """Settings for the block. After an error the transaction or savepoint is lost, and its settings with it."""
    before = dict(statements.rows(using, _READ, [list(values)]))
    set_local(using, **values)
    yield
    set_local(using, **before)


def lift_limits(using: str) -> None:
    """For long transactions (imports, copies, restores): no limits, except for lock waits, which block others."""
    set_local(using, statement_timeout="0", lock_timeout=f"{LOCK_TIMEOUT_MS}", idle_in_transaction_session_timeout="0")


def prevent_sorts_and_scans(using: str, *, prevented: bool) -> None:
    """For the statements that follow in this transaction."""
    value = "off" if prevented else "on"
    set_local(using, enable_sort=value, enable_seqscan=value)


@contextmanager
def limited(using: str, milliseconds: int) -> Iterator[None]:
    """A transaction whose statements may take so long each."""
    with transaction.atomic(using=using):
        set_local(using, statement_timeout=f"{milliseconds}")
        yield


@contextmanager
def by_index(using: str) -> Iterator[None]:
    """A transaction without sorts and scans, which old statistics would suggest for pages."""
    with transaction.atomic(using=using):
        prevent_sorts_and_scans(using, prevented=True)
        yield
        prevent_sorts_and_scans(using, prevented=False)
