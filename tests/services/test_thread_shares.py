"""An owner's share of the request threads."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import pytest
from django.http import HttpResponse

from accounts import audit
from accounts.models import Session
from accounts.users import sessions
from accounts.users.service import create_user
from accounts.users.sessions import Device
from platform_site.concurrency.server_hints import Parked
from platform_site.developer_console import session
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

    def enter(self, owner: str) -> ThreadShare:
        share = ThreadShare(self.shares)
        try:
            share.enter(owner)
        except Parked as parked:
            share.leave()
            parked.start_wait(partial(self.resumed.append, share))
        return share

    def held(self, owner: str, attempts: int = 50) -> int:
        return sum(self.enter(owner).is_held for _ in range(attempts))


def test_an_owner_has_half_of_the_threads_that_no_other_holds() -> None:
    server = Server(16)
    assert [server.held(each) for each in ("usr_a", "usr_b", "usr_c", "usr_d")] == [8, 4, 2, 1]


@pytest.mark.parametrize("threads", [1, 2])
def test_each_owner_may_have_one_thread(threads: int) -> None:
    server = Server(threads)
    assert [server.held("usr_a"), server.held("usr_b")] == [1, 1]


def test_those_who_wait_come_in_their_order_when_a_place_is_free() -> None:
    server = Server(4)
    held = [server.enter("usr_a"), server.enter("usr_a")]
    first, second = server.enter("usr_a"), server.enter("usr_a")
    held[0].leave()
    assert (server.resumed, first.is_held, second.is_held) == ([first], True, False)
    first.enter("usr_a")  # it runs again
    held[0].leave()
    assert not second.is_held
    first.leave()
    assert server.resumed == [first, second]


def test_a_place_that_another_owner_leaves_is_given_on() -> None:
    server = Server(4)
    other = server.enter("usr_b")
    mine = [server.enter("usr_a"), server.enter("usr_a")]
    waiting = server.enter("usr_a")
    assert [each.is_held for each in (*mine, waiting)] == [True, True, False]
    mine[0].leave()
    other.leave()
    assert waiting.is_held


def test_a_place_that_becomes_free_before_the_request_waits_is_its() -> None:
    server = Server(2)
    held, share = server.enter("usr_a"), ThreadShare(server.shares)
    with pytest.raises(Parked) as parked:
        share.enter("usr_a")
    held.leave()
    parked.value.start_wait(partial(server.resumed.append, share))
    assert (server.resumed, share.is_held) == ([share], True)


def test_after_the_timeout_it_is_refused_with_retry_after() -> None:
    server = Server(2)
    held, share = server.enter("usr_a"), server.enter("usr_a")
    [expire] = server.timers
    expire()
    assert server.resumed == [share]
    share.since -= server.shares.timeout  # with its wait for a thread before
    with pytest.raises(OverShare) as refused:
        share.enter("usr_a")
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "1")
    held.leave()
    expire()
    assert (server.resumed, server.held("usr_a")) == ([share], 1)


def test_no_place_is_lost_or_given_twice() -> None:
    server, most, now, lock = Server(8), [0], [0], threading.Lock()

    def work(owner: str) -> None:
        for _ in range(300):
            share, resumed = ThreadShare(server.shares), threading.Event()
            while not share.is_held:
                try:
                    share.enter(owner)
                except Parked as parked:
                    parked.start_wait(resumed.set)
                    assert resumed.wait(10)
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            with lock:
                now[0] -= 1
            share.leave()

    threads = [threading.Thread(target=work, args=("usr_a",), daemon=True) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert 1 <= most[0] <= 4
    assert server.held("usr_a") == 4


@dataclass
class Served:
    """An application with two request threads, whose requests run when the test says so."""

    server: Server = field(default_factory=lambda: Server(2))
    application: Application = field(default_factory=Application)
    submitted: list[tuple[Incoming, float | None]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)

    def send(self, path: str, **meta: str) -> None:
        message = Message()
        message.path = path
        message.meta = {"REQUEST_METHOD": "GET", "HTTP_HOST": "localhost", "SERVER_NAME": "localhost"} | meta
        message.meta |= {"SERVER_PORT": "80", "wsgi.url_scheme": "http"}
        self.application.handle(message)

    def run(self) -> None:
        request, _ = self.submitted.pop()
        self.application._work(request)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    made = Served()
    made.application.load()
    made.application._shares = made.server.shares
    submit = lambda request, since=None: made.submitted.append((request, since))  # noqa: E731
    made.application._pool = SimpleNamespace(submit=submit)  # type: ignore[assignment]
    monkeypatch.setattr(made.application, "_call_on_loop", lambda call: call())
    monkeypatch.setattr(Message, "respond", lambda _, response: made.answers.append(response.status_code))
    return made


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_request_over_the_share_leaves_its_thread_and_is_repeated(served: Served) -> None:
    """Another project is not kept waiting."""
    owner = create_user(pool_id=None, email="o@example.com", password=None, name="o", actor=audit.SYSTEM)
    project, other = (make_project(owner, name) for name in ("One", "Other"))
    first, second, others = (
        key_for(environment_of(each, name).pk, "schema:read")
        for each, name in ((project, "production"), (project, "development"), (other, "production"))
    )
    held = served.server.enter(project.pk)
    served.send("/v1/schema", HTTP_AUTHORIZATION=f"Bearer {first}")
    began = time.monotonic()
    served.run()
    assert (served.submitted, served.answers) == ([], [])
    served.send("/v1/schema", HTTP_AUTHORIZATION=f"Bearer {others}")
    served.run()
    assert served.answers == [200]
    held.leave()
    [(again, since)] = served.submitted
    served.submitted.clear()
    assert since is not None
    assert since < began
    served.send("/v1/schema", HTTP_AUTHORIZATION=f"Bearer {second}")
    served.run()
    assert served.answers == [200], "both environments of a project have one share"
    served.application._work(again)
    assert len(served.submitted) == 1
    served.run()
    assert served.answers == [200, 200, 200]


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_request_without_a_caller_has_the_share_of_its_network(served: Served) -> None:
    held = served.server.enter("192.0.2.1")
    for address, answers in (("192.0.2.1", []), ("192.0.2.2", [200])):
        served.send("/.well-known/jwks.json", REMOTE_ADDR=address)
        served.run()
        assert served.answers == answers
    held.leave()
    served.run()
    assert served.answers == [200, 200]


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_request_that_waited_in_vain_takes_no_thread_again(served: Served) -> None:
    served.server.enter("192.0.2.1")
    served.send("/.well-known/jwks.json", REMOTE_ADDR="192.0.2.1")
    served.run()
    assert (served.submitted, served.answers) == ([], [])
    for expire in served.server.timers:
        expire()
    assert (served.submitted, served.answers) == ([], [503])


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_session_of_the_console_ends_beside_any_other_requests(served: Served) -> None:
    owner = create_user(pool_id=None, email="o@example.com", password=None, name="o", actor=audit.SYSTEM)
    grant = sessions.start(owner, environment_id=None, device=Device(), method="console", password_hash=owner.password)
    page = HttpResponse()
    session.start(page, user_id=owner.pk, session_id=grant.session_id, second_factor=None)
    served.server.enter(owner.pk)
    cookie = f"{page.cookies.output(header='', attrs=[]).strip()}; csrftoken={'a' * 32}"
    served.send("/console/sign-out", HTTP_COOKIE=cookie, HTTP_X_CSRFTOKEN="a" * 32, REQUEST_METHOD="POST")
    served.run()
    assert (served.submitted, served.answers) == ([], [302])
    assert Session.objects.get(pk=grant.session_id).revoked_at is not None


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_page_of_the_console_has_the_share_of_its_account(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = create_user(pool_id=None, email="o@example.com", password=None, name="o", actor=audit.SYSTEM)
    grant = sessions.start(owner, environment_id=None, device=Device(), method="console", password_hash=owner.password)
    page = HttpResponse()
    session.start(page, user_id=owner.pk, session_id=grant.session_id, second_factor=None)
    held = served.server.enter(owner.pk)
    served.send("/console/", HTTP_COOKIE=page.cookies.output(header="", attrs=[]))
    served.run()
    assert (served.submitted, served.answers) == ([], [])
    held.leave()
    served.run()
    assert (served.submitted, served.answers) == ([], [200])

    entered: list[str] = []
    monkeypatch.setattr(ThreadShare, "enter", lambda _, owner: entered.append(owner))
    served.send("/console/", HTTP_COOKIE=page.cookies.output(header="", attrs=[]))
    served.run()
    assert entered == [owner.pk] * 2, "its call of the API belongs to it, so a function that it calls counts as one"


def test_calls_of_functions_have_no_share_but_count() -> None:
    server = Server(16)
    calls = [server.enter("usr_a") for _ in range(8)]
    for call in calls:
        call.count_as_call()
    assert server.held("usr_a") == 4  # of the other eight threads
    calls[0].leave()
    calls[0].enter("usr_a")
    assert calls[0].is_held, "repeated with the slot of its function: it is neither refused nor parked again"


def test_who_comes_later_overtakes_no_one() -> None:
    server = Server(4)
    held = [server.enter("usr_a"), server.enter("usr_a")]
    first = server.enter("usr_a")
    server.shares.release(held[0])
    assert not server.enter("usr_a").is_held
    server.shares.grant()
    assert first.is_held
