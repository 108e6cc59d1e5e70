from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import transaction

from platform_site.postgres import statements

LOCK_TIMEOUT_MS: Final = 10_000
_SET: Final = "SELECT set_config('enable_sort', %s, true), set_config('enable_seqscan', %s, true)"


def lift_limits(using: str) -> None:
    """For long transactions (imports, copies, restores): no limits, except for lock waits, which block others."""
    statements.execute(
        using,
        "SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', %s, true),"
        " set_config('idle_in_transaction_session_timeout', '0', true)",
        [f"{LOCK_TIMEOUT_MS}"],
    )


def prevent_sorts_and_scans(using: str, *, prevented: bool) -> None:
    """For the statements that follow in this transaction."""
    statements.execute(using, _SET, ["off", "off"] if prevented else ["on", "on"])


@contextmanager
def limited(using: str, milliseconds: int) -> Iterator[None]:
    """A transaction whose statements may take so long each."""
    with transaction.atomic(using=using):
        statements.execute(using, "SELECT set_config('statement_timeout', %s, true)", [f"{milliseconds}"])
        yield


@contextmanager
def by_index(using: str) -> Iterator[None]:
    """A transaction without sorts and scans, which old statistics would suggest for pages."""
    with transaction.atomic(using=using):
        prevent_sorts_and_scans(using, prevented=True)
        yield
        prevent_sorts_and_scans(using, prevented=False)
