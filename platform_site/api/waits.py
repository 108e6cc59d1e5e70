"""A request that is about to wait for something slow says so, and its thread goes out of the others' way.

The server runs one request of a process at a time and lets another join when one is stuck, which it finds out by the
clock (`platform_site.server.lane`). Who knows beforehand says `begin()`, and the next request starts at once. The
server's bridge fills `begin_of_server` in; outside of it, in tests, workers and commands, nothing happens.
"""

from collections.abc import Callable
from typing import Final

BRIEFLY: Final = 3
"""So many brief waits in one process go on side by side: with more, threads wait for the interpreter lock instead."""

begin_of_server: Callable[[int | None], None] | None = None


def begin(*, briefly: bool = False) -> None:
    """What this request does from here on is mostly waiting. `briefly`: for a millisecond or so, as a commit waits for
    the disk. Costs no more than a lock."""
    if begin_of_server is not None:
        begin_of_server(BRIEFLY if briefly else None)
