"""Redis killed, frozen and empty (F5 to F7), full, a replica: the API does not notice, the workers come back. And what a
worker does with messages that are none of this release's, or none at all."""

import base64
import json
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from platform_site.redis.circuit_breaker import SECONDS as BREAKER_SECONDS
from tests.faults import inject
from tests.faults.conftest import OwnValkey, superuser
from tests.faults.write_load import Worker
from tests.support import valkey as embedded_valkey
from tests.support.load import Load, p99
from tests.support.service import Up, wait_for
from tests.support.timing import within
from tests.support.valkey import Refusal, refuse_writes, take_writes

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
    ready = httpx.get(f"{battered.base_url}/readyz?require=all")
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
    assert p99(frozen) < within(0.5), "a frozen Valkey slows no request"
    assert httpx.get(f"{battered.base_url}/healthz").elapsed.total_seconds() < within(0.1)
    # Until then a process that was late marks what it revokes later, and others accept it.
    time.sleep(2 * BREAKER_SECONDS)


def test_emptied_redis_ends_no_sessions(battered: Up, own_valkey: OwnValkey, token: str) -> None:
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
    own_valkey.kill()
    time.sleep(1.0)
    own_valkey.start()
    client = embedded_valkey.client(own_valkey.layout)
    # Beat, in the worker, sends its notifications again, and a worker takes them.
    wait_for("a worker waits at the queue", lambda: client.info("clients")["blocked_clients"] >= 1, 40)
    wait_for("nothing piles up", lambda: client.llen("default") == 0, 15)


def test_workers_without_beat_run_jobs_by_their_own_clock(battered: Up, tmp_path: Path) -> None:
    worker = Worker(battered, battered.environment, log=str(tmp_path / "worker.log"))
    try:
        wait_for("it works", lambda: "ready." in worker.said(), 60, every=0.1)
        with inject.without_the_worker_of(battered), superuser(battered) as connection:
            connection.execute(
                "INSERT INTO projects_project (id, name, region, cluster, plan, deleted_at)"
                " VALUES ('prj_forsaken', 'Forsaken', 'us-east-1', 'us-east-1', 'free', now() - interval '1 hour')"
            )

            def is_gone() -> bool:
                return connection.execute("SELECT 1 FROM projects_project WHERE id = 'prj_forsaken'").fetchone() is None

            wait_for("a periodic job found it", is_gone, 20, every=0.1)
        assert worker.process.poll() is None
    finally:
        worker.kill()


# ── A Redis that takes no writes ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("why", ["full", "replica"])
def test_read_only_redis_revives_no_session_and_stops_no_worker(
    battered: Up, own_valkey: OwnValkey, token: str, why: Refusal
) -> None:
    worker, said = battered.part("platform-worker"), len(battered.lines)
    headers = {"Authorization": f"Bearer {token}"}

    def answers() -> list[int]:
        return [httpx.get(f"{battered.base_url}/v1/projects", headers=headers).status_code for _ in range(20)]

    client = embedded_valkey.client(own_valkey.layout)
    wait_for("the worker waits at the queue", lambda: client.info("clients")["blocked_clients"] >= 1, 40)
    assert answers() == [200] * 20, "its record is in Redis"
    try:
        with client.pipeline() as pipe:  # the worker takes it from a Redis that takes nothing any more
            pipe.lpush("webhooks", nudge("webhooks.tasks.dispatch", ["us-east-1"]))
            refuse_writes(pipe, why)
            pipe.execute()
        assert answers() == [200] * 20
        revoked = httpx.post(f"{battered.base_url}/v1/auth/revoke", json={"scope": "current"}, headers=headers)
        assert revoked.status_code == 204
        assert answers() == [401] * 20
        assert httpx.get(f"{battered.base_url}/readyz").json()["dependencies"]["redis"] == "down"
        if why == "full":
            wait_for("what is there is taken", lambda: client.llen("webhooks") == 0, 15)
            assert "to broker lost" not in "".join(battered.lines[said:])
        else:
            wait_for("the worker met it", lambda: "to broker lost" in "".join(battered.lines[said:]), 30, every=0.1)
    finally:
        take_writes(client)
    wait_for("the worker waits at the queue", lambda: client.info("clients")["blocked_clients"] >= 1, 40)
    wait_for("nothing piles up", lambda: client.llen("default") == client.llen("webhooks") == 0, 15)
    wait_for("the mark that could not be written is there", lambda: answers() == [401] * 20, 10)
    assert worker.is_running(), "and is the same as before"


# ── Messages of others ──────────────────────────────────────────────────────────────────────────────────────────────


def nudge(task: str, arguments: Any, **members: Any) -> str:
    """A Celery message; `members` replace some of its own."""
    body = base64.b64encode(json.dumps([arguments, {}, {}]).encode()).decode()
    properties = {
        "correlation_id": "1",
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": "default"},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": f"tag-{time.monotonic_ns()}",
    }
    headers = {"lang": "py", "task": task, "id": "1", "retries": 0, "eta": None, "expires": None}
    whole = {"content-encoding": "utf-8", "content-type": "application/json", "headers": headers}
    return json.dumps({**whole, "body": body, "properties": properties, **members})


def encoded(body: bytes) -> str:
    return base64.b64encode(body).decode()


def messages_of_others() -> dict[str, str | bytes]:
    """What another version may send, or a mistake by hand; by what is wrong with it."""
    job = "platform.run_sweep"
    return {
        "a task of another version": nudge("another.release", ["x"]),
        "an argument too few": nudge("webhooks.tasks.dispatch", []),
        "an argument too many": nudge("webhooks.tasks.dispatch", ["us-east-1", "now"]),
        "an argument of another type": nudge("functions.tasks.work", [{"region": "us-east-1"}]),
        "a periodic job of another type": nudge(job, [{"name": ["x"]}]),
        "a region of another version": nudge("functions.tasks.work", ["mars-1"]),
        "a body of another shape": nudge(job, [], body=encoded(b'"hello"')),
        "a body with nothing in it": nudge(job, [], body=encoded(b"[null, null, null]")),
        "a body that is no JSON": nudge(job, [], body=encoded(b"\x80\x04garble")),
        "a body in no base64": nudge(job, [], body="%%%"),
        "a body that is no text": nudge(job, [], body=17),
        "a pickle": nudge(job, [], **{"content-type": "application/x-python-serialize"}),
        "a body of 8 MB": nudge(job, ["x" * 2**23]),
        "a time that is none": nudge(job, ["x"], headers={"task": job, "id": "1", "eta": "soon", "lang": "py"}),
        "an end that is none": nudge(job, ["x"], headers={"task": job, "id": "1", "expires": [1], "lang": "py"}),
        "headers of another type": nudge(job, ["x"], headers=["task"]),
        "no headers": nudge(job, ["x"], headers=None),
        "no properties": json.dumps({"body": "x"}),
        "properties of another type": nudge(job, ["x"], properties=[1]),
        "nowhere to go": nudge(job, ["x"], properties={"delivery_tag": "1"}),
        "nothing": "",
        "no JSON": "garbage{",
        "no text": b"\xff\xfe\x80",
        "a list": "[1, 2]",
        "null": "null",
        "a number": "17",
        "depth": "[" * 100_000 + "]" * 100_000,
    }


def test_unknown_message_is_dropped_and_the_worker_continues(battered: Up, own_valkey: OwnValkey) -> None:
    """Dropped for good: Redis keeps nothing of it that could come back."""
    client = embedded_valkey.client(own_valkey.layout)
    wait_for("the worker waits at the queue", lambda: client.info("clients")["blocked_clients"] >= 1, 40)
    worker = battered.part("platform-worker")
    for what, message in messages_of_others().items():
        client.lpush("default", message)
        wait_for(f"it is taken: {what}", lambda: client.llen("default") == 0, 30)
        assert client.keys("*unacked*") == [], what
        assert worker.is_running(), what
        assert "Unrecoverable" not in battered.output, what
    wait_for("the worker waits at the queue", lambda: client.info("clients")["blocked_clients"] >= 1, 40)
    assert worker.is_running()
