"""How a request tells the server that it is about to wait: `will_block` lets the next request start (otherwise
`platform_site.server.elastic_pool` notices later); `Parked` gives its thread back to be repeated later. Without the
server, neither has an effect."""

from collections.abc import Callable

from django.http import HttpRequest

on_will_block: Callable[[], None] | None = None
on_shutdown: list[Callable[[], None]] = []
"""Called once when this process is about to end: to resume parked requests, so that clients get a response."""
REPEATABLE = "can_be_repeated"
REPEATED = "is_repeated"


def will_block() -> None:
    """Called before a request waits for I/O. As cheap as a lock."""
    if on_will_block is not None:
        on_will_block()


class Parked(BaseException):
    """Raised by a request that has had no effect yet: repeat it. `then(callback)` calls back once, from any thread,
    when it can go on; `give_up()` releases what it waits for. Not an Exception, so no handler answers it."""

    def __init__(self, then: Callable[[Callable[[], None]], None], give_up: Callable[[], None]) -> None:
        super().__init__()
        self.then, self.give_up = then, give_up


def can_be_repeated(request: HttpRequest) -> bool:
    return REPEATABLE in request.__dict__


def is_repeated(request: HttpRequest) -> bool:
    return REPEATED in request.__dict__
