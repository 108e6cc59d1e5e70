"""Web processes killed, reloaded and stopped under load (F1, F20)."""

import random
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.faults import inject
from tests.faults.conftest import environments_without_schema
from tests.support.load import Load, sign_in
from tests.support.raw_http import connect
from tests.support.service import Up, wait_for
from tests.support.timing import within


def test_f1_killing_web_workers_costs_only_what_they_had_in_hand(battered: Up, token: str) -> None:
    kills = 5
    slowest = 0.0
    count = len(battered.web_workers())
    with Load(battered, token) as load:
        for _ in range(kills):
            time.sleep(random.uniform(0.3, 1.0))
            victim = random.choice(battered.web_workers())
            victim.kill()
            at = time.monotonic()
            wait_for("a new worker", lambda: len([w for w in battered.web_workers() if w != victim]) == count, 10)  # noqa: B023
            slowest = max(slowest, time.monotonic() - at)
        wait_for("it goes on", lambda: load.counts()["201"] >= 20)
    counts = load.counts()
    unanswered = sum(1 for one in load.outcomes if one.status is None)
    assert unanswered <= kills * load.clients, counts
    assert not [one for one in load.outcomes if one.status is not None and one.status >= 500], counts
    assert slowest < within(1.0), "a new worker is there at once"
    assert environments_without_schema(battered) == []


def test_f1_the_same_worker_may_die_again_and_again(battered: Up, token: str) -> None:
    main = battered.part("platform-web")
    with Load(battered, token, only=frozenset({"list"}), clients=2) as load:
        for _ in range(3):
            youngest = max(battered.web_workers(), key=lambda worker: worker.create_time())
            wait_for("it serves: its threads are there", lambda: youngest.num_threads() > 2)  # noqa: B023
            youngest.kill()
            wait_for("it is back", lambda: not youngest.is_running() and len(battered.web_workers()) >= 2)  # noqa: B023
    assert not [one for one in load.outcomes if one.status not in (200, None)], load.counts()
    assert main.is_running()


@pytest.mark.timeout(300)
def test_reload_under_load_fails_no_request(battered: Up, token: str) -> None:
    with Load(battered, token, pause=0.05) as load:
        reloads = 0
        while reloads < 2 or len(load.outcomes) < 200:
            reloads += 1
            before = {worker.pid for worker in battered.web_workers()}
            battered.process.send_signal(signal.SIGHUP)
            wait_for("every worker is new", lambda: not before & {w.pid for w in battered.web_workers()}, 120)  # noqa: B023
    assert set(load.counts()) <= {"200", "201", "204"}, load.counts()


def test_a_reload_asked_for_during_another_one_follows_it(battered: Up) -> None:
    before = {worker.pid for worker in battered.web_workers()}
    battered.process.send_signal(signal.SIGHUP)
    first = wait_for("one is new", lambda: {w.pid for w in battered.web_workers()} - before)
    battered.process.send_signal(signal.SIGHUP)
    replaced = before | first
    wait_for("that is replaced too", lambda: not replaced & {w.pid for w in battered.web_workers()}, 60)


def test_stopping_worker_announces_close_to_a_busy_client(battered: Up) -> None:
    head = b"GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
    before = {worker.pid for worker in battered.web_workers()}
    with connect(battered.base_url) as connection:
        battered.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 15
        while True:
            connection.sendall(head)
            answer = connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 404"), answer
            if b"connection: close" in answer.lower():
                break
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert connection.recv(65536) == b""
    wait_for("the reload is over", lambda: not before & {worker.pid for worker in battered.web_workers()})


def test_stop_under_load_finishes_current_requests_in_ten_seconds(battered: Up, token: str) -> None:
    """The web alone: `up` starts it again, and its socket keeps the clients waiting meanwhile."""
    main = battered.part("platform-web")
    with Load(battered, token) as load:
        time.sleep(1.0)
        main.terminate()
        main.wait(within(10))
        wait_for("it serves again", lambda: battered.web_workers(), 45)
        time.sleep(1.0)
    assert set(load.counts()) <= {"200", "201", "204"}, load.counts()
    assert environments_without_schema(battered) == []
    assert sign_in(battered)


def test_stop_does_not_wait_for_starting_workers(battered: Up) -> None:
    first = battered.part("platform-web")
    first.terminate()

    def just_begun() -> psutil.Process | None:
        mains = battered.named("platform-web", parent=battered.process.pid)
        return next((main for main in mains if main.pid != first.pid and len(main.children()) >= 2), None)

    second = wait_for("it begins anew", just_begun, every=0.001)
    second.terminate()
    second.wait(within(1.0))
    wait_for("it serves", lambda: len(battered.web_workers()) >= 2)
    assert sign_in(battered)


@pytest.mark.timeout(300)
def test_code_that_does_not_start_replaces_no_worker(battered: Up, tmp_path: Path) -> None:
    log, release = tmp_path / "log", tmp_path / "release"
    release.mkdir()
    code = battered.environment | {"PYTHONPATH": str(release)}
    with inject.another_web(battered, code, log=str(log)) as there:
        main = psutil.Process(there.process.pid)

        def workers() -> set[psutil.Process]:
            return set(there.named("spawn_main", parent=main.pid))

        # Its threads are there once a worker serves.
        wait_for("both serve", lambda: [worker.num_threads() > 2 for worker in workers()] == [True, True])
        before = workers()
        (release / "rest_framework_simplejwt.py").write_text("raise ImportError('a bad release')")
        main.send_signal(signal.SIGHUP)
        wait_for("it is said", lambda: "the old workers keep running" in log.read_text())
        wait_for("the new one is gone", lambda: workers() == before)
        assert "a bad release" in log.read_text()
        assert sign_in(there)
        (release / "rest_framework_simplejwt.py").unlink()
        with Load(there, sign_in(there), clients=4) as load:
            main.send_signal(signal.SIGHUP)
            wait_for("the next release serves", lambda: not before & workers() and len(workers()) == 2, 120)
        assert set(load.counts()) <= {"200", "201", "204"}, load.counts()


@pytest.mark.timeout(300)
def test_workers_that_never_serve_end_the_main_process(battered: Up, tmp_path: Path) -> None:
    log, release = tmp_path / "log", tmp_path / "release"
    release.mkdir()
    with inject.another_web(battered, {"PYTHONPATH": str(release)}, log=str(log)) as there:
        (release / "rest_framework_simplejwt.py").write_text("raise ImportError('a bad release')")
        for worker in there.named("spawn_main"):
            worker.kill()
        assert there.process.wait(120) == 1
    assert "workers end before they serve; giving up" in log.read_text()
