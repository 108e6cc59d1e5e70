"""Redis killed, frozen and empty (F5 to F7): the API does not notice, the workers come back."""

import signal
import time

import httpx

from tests.faults.conftest import OwnValkey, superuser
from tests.figures import within
from tests.load import Load, p99
from tests.serving import Up, wait_for

FINE = {"200", "201", "204"}


def test_f6_redis_stopped_and_restarted_empty(battered: Up, own_valkey: OwnValkey, token: str) -> None:
    with Load(battered, token, clients=4) as load:
        time.sleep(0.5)
        gone_at = time.monotonic()
        own_valkey.kill()
        time.sleep(5.0)
        own_valkey.start()
        back_at = time.monotonic()
        time.sleep(1.0)
    assert set(load.counts()) <= FINE, load.counts()
    down = [one for one in load.of("patch") if gone_at <= one.at <= back_at]
    assert p99(down) < within(0.5)
    ready = httpx.get(f"{battered.base_url}/readyz")
    assert ready.status_code == 200, ready.text


def test_f7_redis_frozen_holds_no_request_up(battered: Up, own_valkey: OwnValkey, token: str) -> None:
    with Load(battered, token, clients=4) as load:
        time.sleep(0.5)
        frozen_at = time.monotonic()
        own_valkey.signal(signal.SIGSTOP)
        try:
            time.sleep(5.0)
        finally:
            own_valkey.signal(signal.SIGCONT)
        thawed_at = time.monotonic()
        time.sleep(0.5)
    assert set(load.counts()) <= FINE, load.counts()
    frozen = [one for one in load.of("patch", "list") if frozen_at <= one.at <= thawed_at]
    assert p99(frozen) < within(0.5), "reliability F7"
    assert httpx.get(f"{battered.base_url}/healthz").elapsed.total_seconds() < within(0.1)


def test_f5_an_emptied_redis_signs_nobody_out(battered: Up, own_valkey: OwnValkey, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.get(f"{battered.base_url}/v1/projects", headers=headers).status_code == 200
    own_valkey.kill()
    own_valkey.start()

    def answers() -> list[int]:
        return [httpx.get(f"{battered.base_url}/v1/projects", headers=headers).status_code for _ in range(20)]

    assert answers() == [200] * 20
    revoked = httpx.post(f"{battered.base_url}/v1/auth/revoke", json={"scope": "current"}, headers=headers)
    assert revoked.status_code == 204
    assert answers() == [401] * 20
    own_valkey.kill()
    own_valkey.start()
    assert answers() == [401] * 20


def test_the_worker_consumes_again_after_redis_came_back(battered: Up, own_valkey: OwnValkey) -> None:
    from platform_site.services import valkey

    own_valkey.kill()
    time.sleep(1.0)
    own_valkey.start()
    client = valkey.client(own_valkey.layout)
    # Beat, in the worker, sends its nudges again, and somebody takes them.
    wait_for("a worker waits at the queue", lambda: client.info("clients")["blocked_clients"] >= 1, 40)
    wait_for("nothing piles up", lambda: client.llen("default") == 0, 15)


def test_f24_without_beat_the_workers_sweep_by_their_own_clock(battered: Up) -> None:
    [worker] = wait_for("the worker", lambda: battered.named("manage.py work", parent=battered.process.pid))
    [beat] = wait_for("its beat", worker.children)
    beat.kill()
    with superuser(battered) as connection:
        connection.execute(
            "INSERT INTO projects_project (id, name, region, cluster, plan, deleted_at)"
            " VALUES ('prj_forsaken', 'Forsaken', 'us-east-1', 'us-east-1', 'free', now() - interval '1 hour')"
        )

        def is_gone() -> bool:
            return connection.execute("SELECT 1 FROM projects_project WHERE id = 'prj_forsaken'").fetchone() is None

        wait_for("a sweep found it", is_gone, 20, every=0.1)
    assert worker.is_running()
    assert not [child for child in worker.children() if child.is_running() and child.pid != beat.pid]
