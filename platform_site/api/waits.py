"""A request that is about to wait for something slow says so, and its thread goes out of the others' way.

The server runs one request of a process at a time and lets another join when one is stuck, which it finds out by the
clock (`platform_site.server.lane`). Who knows beforehand says `begin()`, and the next request starts at once. The
server's bridge fills `begin_of_server` in; outside of it, in tests, workers and commands, nothing happens.
"""

from collections.abc import Callable

begin_of_server: Callable[[], None] | None = None


def begin() -> None:
    """What this request does from here on is mostly waiting. Costs no more than a lock."""
    if begin_of_server is not None:
        begin_of_server()
