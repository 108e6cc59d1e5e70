"""How a request tells the server that it is about to wait, so that its thread can serve others. `begin()`: the rest of
the request is mostly waiting, and the next request starts at once; without it, the pool finds out by the clock
(`platform_site.server.elastic_pool`). `Parked`: the request cannot begin its work yet. It gives its thread back and is
repeated later. The server implements both; in tests, workers and commands `begin` does nothing, and no request can be
repeated."""

from collections.abc import Callable

from django.http import HttpRequest

set_server: Callable[[], None] | None = None
when_leaving: list[Callable[[], None]] = []
"""Called once when this process is about to end: let parked requests go on, so that their clients get a response."""
REPEATABLE = "can_be_repeated"
REPEATED = "is_repeated"


def will_block() -> None:
    """What this request does from here on is mostly waiting. Costs no more than a lock."""
    if set_server is not None:
        set_server()


class Parked(BaseException):
    """Raised through view and middleware by a request that has had no effect yet: repeat it from its beginning.
    `then(callback)` calls back once, from any thread, when the request can go on. `give_up()` releases what the request
    waits for or was given; it may be called more than once. Not an Exception, so that no handler answers it."""

    def __init__(self, then: Callable[[Callable[[], None]], None], give_up: Callable[[], None]) -> None:
        super().__init__()
        self.then, self.give_up = then, give_up


def can_be_repeated(request: HttpRequest) -> bool:
    """Whether the server would catch Parked."""
    return REPEATABLE in request.__dict__


def is_repeated(request: HttpRequest) -> bool:
    """Whether the request was parked before: it was counted and must not be counted again."""
    return REPEATED in request.__dict__
