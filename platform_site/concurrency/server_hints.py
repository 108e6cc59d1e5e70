"""How a request tells the server (`platform_site.server.application`) that it is about to wait. If it has had no effect
yet, it is repeated from its beginning: on the event loop it raises NeedsThread, and is repeated in a thread; in a
thread it raises Parked, and is repeated when a share of the threads (`enter_share`) or a slot for a function
(`functions.execution.request_concurrency`) is free. `will_block` lets the next request start meanwhile."""

from collections.abc import Callable

from django.http import HttpRequest

on_will_block: Callable[[], None] | None = None
on_shutdown: list[Callable[[], None]] = []
"""Called when this process is about to end: to resume parked requests, so that clients get a response."""
REPEATABLE = "can_be_repeated"
REPEATED = "is_repeated"
SHARE = "thread_share"
"""Of a request in a thread: its `platform_site.server.thread_shares.ThreadShare`."""


def will_block() -> None:
    if on_will_block is not None:
        on_will_block()


def enter_share(request: HttpRequest, owner: str) -> None:
    """Called once the owner is known. Raises Parked, and Unavailable after waiting."""
    share = request.__dict__.get(SHARE)
    if share is not None:
        share.enter(owner)


def will_call_function(request: HttpRequest) -> None:
    """Called before waiting for a function: calls have limits of their own."""
    share = request.__dict__.get(SHARE)
    if share is not None:
        share.count_as_call()


class NeedsThread(BaseException):
    """Not an Exception, like Parked, so that no handler turns it into a response."""


class Parked(BaseException):
    """`start_wait(resume)` begins the wait, and has `resume` called once, from any thread, when it is over. `release()`
    is called when the repeated request ends, to give up what it has waited for."""

    def __init__(
        self, start_wait: Callable[[Callable[[], None]], None], release: Callable[[], None] | None = None
    ) -> None:
        super().__init__()
        self.start_wait, self.release = start_wait, release


def can_be_repeated(request: HttpRequest) -> bool:
    return REPEATABLE in request.__dict__


def is_repeated(request: HttpRequest) -> bool:
    """Then it was counted against rate limits before."""
    return REPEATED in request.__dict__
