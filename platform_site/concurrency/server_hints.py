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
SHARE = "thread_share"
"""The attribute of a request in a thread of the server with its `platform_site.server.thread_shares.ThreadShare`."""


def will_block() -> None:
    """Called before a request waits for I/O. As cheap as a lock."""
    if on_will_block is not None:
        on_will_block()


def enter_share(request: HttpRequest, owner: str) -> None:
    """Before the effect of a request, once its owner is known. Raises Parked, and Unavailable after waiting."""
    share = request.__dict__.get(SHARE)
    if share is not None:
        share.enter(owner)


def will_call_function(request: HttpRequest) -> None:
    """Called before a request waits for a function: calls have limits of their own."""
    share = request.__dict__.get(SHARE)
    if share is not None:
        share.count_as_call()


class Parked(BaseException):
    """Gives the thread back: the request, which has had no effect yet, is repeated from its beginning. `then(callback)`
    calls `callback` once, from any thread, when it can be repeated; `release()`, if any, when it ends, to release what
    it waits for or has obtained. Not an Exception, so that no handler turns it into a response."""

    def __init__(self, then: Callable[[Callable[[], None]], None], release: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.then, self.release = then, release


def can_be_repeated(request: HttpRequest) -> bool:
    return REPEATABLE in request.__dict__


def is_repeated(request: HttpRequest) -> bool:
    return REPEATED in request.__dict__
