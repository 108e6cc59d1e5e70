"""The time limits of a transaction that takes as long as its data are large: an import, a copy, a restore.

Its statements have none. It waits longer for others than a request does, but not for ever: what it holds meanwhile is
in their way, too.
"""

from typing import Any, Final

LOCK_TIMEOUT_MS: Final = 10_000


def lift(cursor: Any) -> None:
    """Take the limits off the transaction at hand."""
    cursor.execute(
        "SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', %s, true),"
        " set_config('idle_in_transaction_session_timeout', '0', true)",
        [f"{LOCK_TIMEOUT_MS}"],
    )
