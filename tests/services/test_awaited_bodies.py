"""Bodies awaited without the event loop: the first of body and deadline decides."""

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from platform_site.http.errors import ApiError, InvalidRequest, Unavailable
from platform_site.server.body_reader import BodyReader, Future, set_result_now
from tests.support.service import wait_for

LATE = Unavailable("late")


class Body:
    """A future as Granian's: it tells by `loop.call_soon_threadsafe`, in whatever thread completes it."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.tell: Callable[[], Any] | None = None
        self.outcome: bytes | Exception | None = None
        self.was_cancelled = False

    def add_done_callback(self, callback: Callable[[Future], None], context: contextvars.Context) -> None:
        self.tell = lambda: self.loop.call_soon_threadsafe(callback, self, context=context)

    def complete(self, outcome: bytes | Exception) -> None:
        self.outcome = outcome
        if self.tell is not None:
            self.tell()

    def cancel(self) -> bool:
        self.was_cancelled = True
        return True

    def done(self) -> bool:
        return self.outcome is not None

    def result(self) -> bytes:
        if isinstance(self.outcome, bytes):
            return self.outcome
        raise self.outcome or AssertionError("not done")


class Room:
    """A running loop in a thread of its own, and arrivals that use it."""

    def __init__(self, seconds: float) -> None:
        self.loop = asyncio.new_event_loop()
        set_result_now(self.loop)
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.arrivals = BodyReader(
            lambda delay, call: self.loop.call_soon_threadsafe(self.loop.call_later, delay, call), seconds, LATE
        )
        self.heard: list[tuple[bytes | ApiError, threading.Thread]] = []

    def expect(self) -> Body:
        body = Body(self.loop)
        self.arrivals.expect(body, lambda what: self.heard.append((what, threading.current_thread())))
        return body

    @property
    def words(self) -> list[bytes | ApiError]:
        return [what for what, _ in self.heard]


@pytest.fixture
def room(request: pytest.FixtureRequest) -> Any:
    room = Room(getattr(request, "param", 0.2))
    yield room
    room.loop.call_soon_threadsafe(room.loop.stop)
    room.thread.join()
    room.loop.close()


def test_a_body_is_handed_on_in_the_thread_that_tells_of_it(room: Room) -> None:
    room.expect().complete(b"{}")
    assert room.heard == [(b"{}", threading.current_thread())]


def test_a_body_that_was_there_already_is_handed_on_at_once(room: Room) -> None:
    body = Body(room.loop)
    body.complete(b"early")
    room.arrivals.expect(body, lambda what: room.heard.append((what, threading.current_thread())))
    assert room.words == [b"early"]


def test_a_broken_body_is_a_clear_refusal(room: Room) -> None:
    room.expect().complete(RuntimeError("the stream broke"))
    (refusal,) = room.words
    assert isinstance(refusal, InvalidRequest)


def test_late_bodies_are_given_up_once_and_others_go_on_waiting(room: Room) -> None:
    late = [room.expect() for _ in range(3)]
    wait_for("the deadline", lambda: len(room.heard) == 3, 20)
    assert room.words == [LATE] * 3
    assert all(body.was_cancelled for body in late)
    assert {thread for _, thread in room.heard} == {room.thread}
    late[0].complete(b"too late")
    assert len(room.heard) == 3
    again = room.expect()  # the timer went to rest meanwhile
    wait_for("the deadline of another", lambda: len(room.heard) == 4, 20)
    assert again.was_cancelled


@pytest.mark.parametrize("room", [30.0], indirect=True)
def test_of_many_at_once_each_is_heard_of_exactly_once(room: Room) -> None:
    bodies = [room.expect() for _ in range(400)]
    threads = [
        threading.Thread(target=lambda part: [body.complete(b"x") for body in part], args=(part,))
        for part in (bodies, bodies[::-1])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(room.heard) == 400


def test_what_is_not_a_body_still_goes_to_the_loop(room: Room) -> None:
    ran: list[threading.Thread] = []
    room.loop.call_soon_threadsafe(lambda: ran.append(threading.current_thread()))
    wait_for("the loop", lambda: ran, 20)
    assert ran == [room.thread]


@pytest.mark.parametrize("outcome", [b"{}", None])
def test_a_future_keeps_nothing_of_a_request_that_went_on(room: Room, outcome: bytes | None) -> None:
    """Granian's keeps its callback, and Python's collector does not look into it."""

    class Request:
        def go_on(self, what: bytes | ApiError) -> None:
            room.heard.append((what, threading.current_thread()))

    request = Request()
    kept = weakref.ref(request)
    body = Body(room.loop)
    room.arrivals.expect(body, request.go_on)
    if outcome is not None:
        body.complete(outcome)
    wait_for("it goes on", lambda: room.heard, 20)
    del request
    assert body.tell is not None, "the future is there, and what it tells"

    def is_gone() -> bool:
        gc.collect()
        return kept() is None

    wait_for("it is not stored", is_gone, 10)
