"""PostgreSQL restarted, its connections cut, its tables locked (F8 to F10): 503 with Retry-After, then as before."""

import concurrent.futures
import signal
import time

import httpx
import psutil

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout
from tests.faults.conftest import environments_without_schema, superuser
from tests.support.load import Load, Outcome
from tests.support.service import Up, wait_for
from tests.support.timing import within

FINE = {"200", "201", "204"}


def assert_only_503(load: Load) -> list[Outcome]:
    """The outcomes that were 503; there must be none worse, and each says when to come again."""
    assert set(load.counts()) <= FINE | {"503 unavailable"}, load.counts()
    refused = [one for one in load.outcomes if one.status == 503]
    assert all(one.retry_after and int(one.retry_after) >= 1 for one in refused)
    return refused


def server(up: Up) -> psutil.Process:
    return up.part("postgres", "-D")


def test_f8_a_restart_of_postgresql_is_503_and_then_over(battered: Up, token: str) -> None:
    layout = Layout(battered.data_dir)
    with Load(battered, token) as load:
        time.sleep(1.0)
        server(battered).send_signal(signal.SIGQUIT)  # what `pg_ctl restart -m immediate` begins with
        wait_for("it has gone", lambda: not embedded_postgres.answers(layout), every=0.005)
        wait_for("`up` started it again", lambda: embedded_postgres.answers(layout), 20)
        accepts_at = time.monotonic()
        time.sleep(3.0)
    assert_only_503(load)
    later = [one for one in load.outcomes if one.at > accepts_at]
    first = min(one.at + one.seconds for one in later if one.status in (200, 201, 204))
    assert first - accepts_at < 2.0
    # At most one per thread of the pools may find out by itself that its connection is dead.
    assert [one for one in later if one.at > accepts_at + 2.0 and one.status == 503] == []
    assert environments_without_schema(battered) == []


def test_f9_terminated_connections_cost_at_most_a_503_each(battered: Up, token: str) -> None:
    terminated: set[object] = set()
    with Load(battered, token) as load, superuser(battered) as connection:
        for _ in range(4):
            time.sleep(0.7)
            end = "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'platform'"
            terminated |= {pid for pid, _ in connection.execute(end)}
        left = "SELECT FROM pg_stat_activity WHERE pid = ANY(%s)"
        wait_for("they have ended", lambda: not connection.execute(left, [list(terminated)]).fetchall())
        calm_at = time.monotonic()
        time.sleep(1.0)
    refused = assert_only_503(load)
    assert len(refused) <= len(terminated)
    assert not [one for one in refused if one.at > calm_at]
    assert environments_without_schema(battered) == []


def test_f10_locked_tables_make_fast_503s_and_leave_the_probe_alone(battered: Up, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}

    def ask(_: int) -> tuple[int, float]:
        begun = time.monotonic()
        answer = httpx.get(f"{battered.base_url}/v1/projects", headers=headers, timeout=20)
        return answer.status_code, time.monotonic() - begun

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        with superuser(battered) as connection, connection.transaction():
            connection.execute("LOCK TABLE projects_project, projects_member IN ACCESS EXCLUSIVE MODE")
            asked = [pool.submit(ask, number) for number in range(20)]
            probes = []
            while not all(one.done() for one in asked):
                begun = time.monotonic()
                assert httpx.get(f"{battered.base_url}/healthz").status_code == 200
                probes.append(time.monotonic() - begun)
                time.sleep(0.05)
        answers = [one.result() for one in asked]
    assert {status for status, _ in answers} == {503}
    assert max(seconds for _, seconds in answers) < within(3.8), "the lock's 2 s, and a little"
    assert sorted(probes)[len(probes) * 9 // 10] < within(0.2)
    unlocked_at = time.monotonic()
    assert ask(0)[0] == 200
    assert time.monotonic() - unlocked_at < within(1.0)
