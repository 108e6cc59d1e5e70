"""An environment's share of the request threads."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import pytest

from accounts import audit
from accounts.users.service import create_user
from platform_site.concurrency.server_hints import Parked
from platform_site.server.application import Application
from platform_site.server.http_message import Message
from platform_site.server.incoming import Incoming
from platform_site.server.thread_shares import OverShare, ThreadShare, ThreadShares
from tests.projects.conftest import environment_of, key_for, make_project


@dataclass
class Server:
    """What a server with `threads` request threads does for its requests."""

    threads: int
    timers: list[Callable[[], None]] = field(default_factory=list)
    resumed: list[ThreadShare] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shares = ThreadShares(self.threads, 60.0, lambda _, call: self.timers.append(call))

    def enter(self, environment_id: str) -> ThreadShare:
        share = ThreadShare(self.shares)
        try:
            share.enter(environment_id)
        except Parked as parked:
            share.leave()
            parked.then(partial(self.resumed.append, share))
        return share

    def held(self, environment_id: str, attempts: int = 50) -> int:
        return sum(self.enter(environment_id).is_held for _ in range(attempts))


def test_an_environment_has_half_of_the_threads_that_no_other_holds() -> None:
    server = Server(16)
    assert [server.held(each) for each in ("env_a", "env_b", "env_c", "env_d")] == [8, 4, 2, 1]


@pytest.mark.parametrize("threads", [1, 2])
def test_each_environment_may_have_one_thread(threads: int) -> None:
    server = Server(threads)
    assert [server.held("env_a"), server.held("env_b")] == [1, 1]


def test_those_who_wait_come_in_their_order_when_a_place_is_free() -> None:
    server = Server(4)
    held = [server.enter("env_a"), server.enter("env_a")]
    first, second = server.enter("env_a"), server.enter("env_a")
    held[0].leave()
    assert (server.resumed, first.is_held, second.is_held) == ([first], True, False)
    first.enter("env_a")  # it runs again
    held[0].leave()
    assert not second.is_held
    first.leave()
    assert server.resumed == [first, second]


def test_a_place_that_another_environment_leaves_is_given_on() -> None:
    server = Server(4)
    other = server.enter("env_b")
    mine = [server.enter("env_a"), server.enter("env_a")]
    waiting = server.enter("env_a")
    assert [each.is_held for each in (*mine, waiting)] == [True, True, False]
    mine[0].leave()
    other.leave()
    assert waiting.is_held


def test_a_place_that_becomes_free_before_the_request_waits_is_its() -> None:
    server = Server(2)
    held, share = server.enter("env_a"), ThreadShare(server.shares)
    with pytest.raises(Parked) as parked:
        share.enter("env_a")
    held.leave()
    parked.value.then(partial(server.resumed.append, share))
    assert (server.resumed, share.is_held) == ([share], True)


def test_after_the_timeout_it_is_refused_with_retry_after() -> None:
    server = Server(2)
    held, share = server.enter("env_a"), server.enter("env_a")
    [expire] = server.timers
    expire()
    assert server.resumed == [share]
    share.since -= server.shares.timeout  # with its wait for a thread before
    with pytest.raises(OverShare) as refused:
        share.enter("env_a")
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "1")
    held.leave()
    expire()
    assert (server.resumed, server.held("env_a")) == ([share], 1)


def test_no_place_is_lost_or_given_twice() -> None:
    server, most, now, lock = Server(8), [0], [0], threading.Lock()

    def work(environment_id: str) -> None:
        for _ in range(300):
            share, resumed = ThreadShare(server.shares), threading.Event()
            while not share.is_held:
                try:
                    share.enter(environment_id)
                except Parked as parked:
                    parked.then(resumed.set)
                    assert resumed.wait(10)
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            with lock:
                now[0] -= 1
            share.leave()

    threads = [threading.Thread(target=work, args=("env_a",), daemon=True) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert 1 <= most[0] <= 4
    assert server.held("env_a") == 4


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_request_over_the_share_leaves_its_thread_and_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = create_user(pool_id=None, email="o@example.com", password=None, name="o", actor=audit.SYSTEM)
    environment_id = environment_of(make_project(owner)).pk
    key = key_for(environment_id, "schema:read")
    server, submitted, application = Server(2), list[tuple[Incoming, float | None]](), Application()
    application.load()
    application._shares = server.shares
    submit = lambda request, since=None: submitted.append((request, since))  # noqa: E731
    application._pool = SimpleNamespace(submit=submit)  # type: ignore[assignment]
    monkeypatch.setattr(application, "_call_on_loop", lambda call: call())
    message = Message()
    message.path = "/v1/schema"
    message.meta = {"REQUEST_METHOD": "GET", "HTTP_HOST": "localhost", "HTTP_AUTHORIZATION": f"Bearer {key}"}
    answers: list[int] = []
    monkeypatch.setattr(Message, "respond", lambda _, response: answers.append(response.status_code))
    held = server.enter(environment_id)
    application.handle(message)
    began = time.monotonic()
    application._work(submitted.pop()[0])
    assert (submitted, answers) == ([], [])
    held.leave()
    [(again, since)] = submitted
    assert since is not None
    assert since < began
    waiting = server.enter(environment_id)
    assert not waiting.is_held
    application._work(again)
    assert (answers, waiting.is_held) == ([200], True)


def test_calls_of_functions_have_no_share_but_count() -> None:
    server = Server(16)
    calls = [server.enter("env_a") for _ in range(8)]
    for call in calls:
        call.count_as_call()
    assert server.held("env_a") == 4  # of the other eight threads
    calls[0].leave()
    calls[0].enter("env_a")
    assert calls[0].is_held, "repeated with the slot of its function: it is neither refused nor parked again"


def test_who_comes_later_overtakes_no_one() -> None:
    server = Server(4)
    held = [server.enter("env_a"), server.enter("env_a")]
    first = server.enter("env_a")
    server.shares._release(held[0])
    assert not server.enter("env_a").is_held
    server.shares._grant()
    assert first.is_held
