"""What a function fetches is fetched side by side, a few at a time, and is over when its run is. Real receivers."""

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections

from functions.models import Run
from functions.runtime.async_replies import MAX_AT_ONCE
from tests.functions.conftest import RecordingHost, RunCode
from tests.rows.conftest import Tracker
from tests.support.functions import deploy, invoke, run_body
from tests.support.receiver import Behave, Receiver, answer
from tests.support.timing import within

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]


@pytest.fixture(autouse=True)
def _loopback(settings: Any) -> None:
    settings.OUTBOUND_ALLOWED_NETWORKS = ["127.0.0.0/8"]


class Together:
    """Answers no request until `count` requests have arrived, and stores their maximum number."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=30)
        self._lock = threading.Lock()
        self.now = self.most = 0

    def __call__(self, connection: socket.socket) -> object:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self._barrier.wait()
        with self._lock:
            self.now -= 1
        return answer("200 OK", b"{}")(connection)


def test_as_many_as_may_are_under_way_at_once_and_no_more(tracker: Tracker) -> None:
    at_once = Together(MAX_AT_ONCE)
    with Receiver(at_once) as receiver:
        body = f"""const ask = async (n: number) => (await ctx.fetch("{receiver.url("/")}" + n)).status;
            return await Promise.all(Array.from({{length: {3 * MAX_AT_ONCE}}}, (_, n) => ask(n)))"""
        got, run = run_body(tracker, body, allowed_hosts=["127.0.0.1"], timeout_ms=10_000)
    assert got.json["output"] == [200] * (3 * MAX_AT_ONCE), run
    assert at_once.most == MAX_AT_ONCE
    asked = sorted(int(request.split()[1].rpartition(b"/")[2]) for request in receiver.requests)
    assert asked == list(range(3 * MAX_AT_ONCE))


def test_each_answer_comes_to_its_own_question(tracker: Tracker) -> None:
    """The last one asked is answered first."""
    arrived, answered = [threading.Event() for _ in range(3)], [threading.Event() for _ in range(4)]
    answered[3].set()

    def behave(number: int) -> Behave:
        def answers(connection: socket.socket) -> object:
            arrived[number].set()
            answered[number + 1].wait(30)
            answer("200 OK", str(number).encode())(connection)
            answered[number].set()
            return True

        return answers

    receivers = [Receiver(behave(number)) for number in range(3)]
    try:
        urls = [receiver.url("/") for receiver in receivers]
        body = f"return await Promise.all({urls}.map(async (url: string) => (await ctx.fetch(url)).text()))"
        got, run = run_body(tracker, body, allowed_hosts=["127.0.0.1"], timeout_ms=10_000)
    finally:
        for receiver in receivers:
            receiver.__exit__()
    assert got.json["output"] == ["0", "1", "2"], run


def test_rows_do_not_wait_for_what_is_fetched(tracker: Tracker) -> None:
    """The answer comes when the code has done something with rows, which a fetch in the line before would keep from
    happening."""
    released = threading.Event()

    def held(connection: socket.socket) -> object:
        assert released.wait(30)
        return answer("200 OK", b"held")(connection)

    def release(connection: socket.socket) -> object:
        released.set()
        return answer()(connection)

    with Receiver(held) as slow, Receiver(release) as quick:
        body = f"""const slow = ctx.fetch("{slow.url("/")}").then((got: any) => got.text());
            const rows = await ctx.rows.list("tasks", {{limit: 1}});
            await ctx.fetch("{quick.url("/")}");
            return [await slow, Array.isArray(rows.data)]"""
        got, run = run_body(tracker, body, allowed_hosts=["127.0.0.1"], timeout_ms=10_000)
    assert got.json["output"] == ["held", True], run


def test_unawaited_fetches_finish_before_the_run_ends(tracker: Tracker) -> None:
    begun, released, answered = threading.Event(), threading.Event(), threading.Event()

    def held(connection: socket.socket) -> object:
        begun.set()
        assert released.wait(30)
        answered.set()
        return answer()(connection)

    with Receiver(held) as receiver:
        source = f"export default (_: any, ctx: any) => {{ ctx.fetch('{receiver.url('/')}'); return 'gone on' }}"
        assert deploy(tracker, "f", source, allowed_hosts=["127.0.0.1"], timeout_ms=10_000).status == 201
        got, thread = _invoked(tracker, "f")
        assert begun.wait(30)
        thread.join(0.2)  # what must not happen has 200 ms to happen in
        assert not got, "the run is not over"
        released.set()
        thread.join(30)
    assert answered.is_set()
    assert got[0].json["output"] == "gone on"


def test_unawaited_fetches_have_no_more_time_than_the_run(tracker: Tracker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        body = f"ctx.fetch('http://127.0.0.1:{silent.getsockname()[1]}/'); return 'gone on'"
        got, run = run_body(tracker, body, allowed_hosts=["127.0.0.1"], timeout_ms=2_000)
        assert got.json["output"] == "gone on", run
        connection, _ = silent.accept()
        with connection:
            connection.settimeout(30)
            assert connection.recv(65536).startswith(b"GET / ")
            assert connection.recv(1) == b""
        assert invoke(tracker, "f").json["output"] == "gone on", "by another process"


def test_burst_of_unawaited_fetches_is_completed(tracker: Tracker) -> None:
    """Most of it is not even sent to the host when the code returns."""
    with Receiver(answer()) as receiver:
        body = f"""for (let n = 0; n < 40; n++) ctx.fetch("{receiver.url("/")}" + n); return 'gone on'"""
        got, run = run_body(tracker, body, allowed_hosts=["127.0.0.1"], timeout_ms=10_000)
        assert got.json["output"] == "gone on", run
        assert len({request.split()[1] for request in receiver.requests}) == 40


def _invoked(tracker: Tracker, name: str) -> tuple[list[Any], threading.Thread]:
    """A call under way in a thread: the list that its answer will stand in, and the thread."""
    answers: list[Any] = []

    def call() -> None:
        answers.append(invoke(tracker, name))
        connections.close_all()

    thread = threading.Thread(target=call)
    thread.start()
    return answers, thread


def _hanging(tracker: Tracker, end: Callable[[Run], None], **settings: Any) -> tuple[Run, Any]:
    """A run that waits for three silent servers until `end` did something; each of them must see its connection end."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        source = f"""export default async (_: any, ctx: any) =>
            await Promise.all([1, 2, 3].map((n) => ctx.fetch("{url}" + n)))"""
        deploy(tracker, "late", source, allowed_hosts=["127.0.0.1"], **settings)
        answers, thread = _invoked(tracker, "late")
        taken = [silent.accept()[0] for _ in range(3)]
        for connection in taken:
            assert connection.recv(65536).startswith(b"GET /")
        run = Run.objects.using(tracker.project.cluster).get()
        end(run)
        thread.join(30)
        for connection in taken:
            connection.settimeout(30)
            assert connection.recv(1) == b"", "the other end is gone"
            connection.close()
    run.refresh_from_db()
    return run, answers[0]


def test_a_cancelled_run_ends_its_fetches(tracker: Tracker) -> None:
    def cancel(run: Run) -> None:
        assert tracker.post("owner", f"/functions/late/runs/{run.pk}/cancel", None).status == 200

    run, _ = _hanging(tracker, cancel, timeout_ms=10_000)
    assert run.error["reason"] == "cancelled"
    assert run.duration_ms < within(5) * 1000


def test_a_run_whose_time_is_up_ends_its_fetches(tracker: Tracker) -> None:
    run, got = _hanging(tracker, lambda run: None, timeout_ms=1_000)
    assert (got.status, got.error) == (504, "function_timeout")
    assert run.error["reason"] == "timeout"
    assert invoke(tracker, "late").status == 200, "and the next one is served"


def test_a_refusal_is_told_beside_answers(tracker: Tracker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with Receiver(answer("200 OK", b"ok")) as receiver:
        body = f"""const said = async (url: string) => {{
                try {{ return await (await ctx.fetch(url)).text() }} catch (error: any) {{ return [error.name, error.code] }} }};
            return await Promise.all(["{receiver.url("/")}", "http://127.0.0.1:{port}/", "http://elsewhere.example/"].map(said))"""
        got, run = run_body(tracker, body, allowed_hosts=["127.0.0.1"])
    assert got.json["output"] == ["ok", ["Refused", "fetch_failed"], ["NotAllowed", "refused"]], run


def test_a_flood_of_fetches_waits_in_the_code_and_not_with_us(run_code: RunCode) -> None:
    """More than a frame may have, asked in one breath: no more of them are held than are answered, and every one is."""

    class Far(RecordingHost):
        def __init__(self) -> None:
            super().__init__()
            self.lock, self.now, self.most = threading.Lock(), 0, 0

        def answer(self, operation: str, arguments: bytes, *, seconds: float) -> Any:
            with self.lock:
                self.now += 1
                self.most = max(self.most, self.now)

            def far() -> bytes:
                with self.lock:
                    self.now -= 1
                return b'{"status":200,"headers":[],"body":"%b"}' % (b"QUJD" * 65536)

            return far

    far = Far()
    source = """export default async (count: number, ctx: any) => {
        const body = "x".repeat(262144);
        const got = await Promise.all(Array.from({length: count}, () => ctx.fetch("http://a.example/", {method: "POST", body})));
        return (await Promise.all(got.map((one) => one.text()))).filter((text) => text.length === 196608).length;
    }"""
    outcome = run_code(source, 100, timeout=within(20), asked=far, memory_mb=256)
    assert (outcome.reason, outcome.output) == (None, 100), outcome.error
    assert far.most <= MAX_AT_ONCE + 1, "and the one that waits"


def test_a_process_that_dies_meanwhile_interrupts_its_host(run_code: RunCode) -> None:
    class Far(RecordingHost):
        interrupted = threading.Event()

        def answer(self, operation: str, arguments: bytes, *, seconds: float) -> Any:
            def far() -> bytes:
                assert self.interrupted.wait(30)
                return b"null"

            return far

        def interrupt(self) -> None:
            self.interrupted.set()

    far = Far()
    source = "export default (_: any, ctx: any) => { ctx.fetch('http://a.example/'); while (true); }"
    outcome = run_code(source, timeout=1.0, asked=far)
    assert outcome.reason == "timeout"
    assert far.interrupted.is_set()
