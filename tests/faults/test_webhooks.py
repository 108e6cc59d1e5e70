"""Webhooks while workers, Redis and PostgreSQL are killed (F3 to F7): no event is lost, none is made up."""

import json
import logging
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout, region_database
from tests.faults.conftest import OwnValkey, superuser
from tests.faults.write_load import SETTINGS, Storm, Worker
from tests.support.receiver import Receiver, answer, headers
from tests.support.service import Up, wait_for
from tests.support.unavailable import database_unavailable
from webhooks.delivery.circuit_breaker import MAX_CONCURRENCY, PREFETCH_FACTOR


@pytest.fixture(scope="module")
def more_settings() -> dict[str, str]:
    return SETTINGS


@pytest.fixture(autouse=True)
def _httpx_is_silent() -> None:
    logging.getLogger("httpx").setLevel(logging.WARNING)


@pytest.fixture
def workers(battered: Up, own_valkey: OwnValkey) -> Iterator[list[Worker]]:
    """Two more workers, to be killed."""
    made = [Worker(battered, {**SETTINGS, "REDIS_URL": own_valkey.layout.redis_url()}) for _ in range(2)]
    yield made
    for worker in made:
        worker.kill()


def restart_postgres(up: Up) -> None:
    layout = Layout(up.data_dir)
    up.part("postgres", "-D").send_signal(signal.SIGQUIT)
    wait_for("it has gone", lambda: not embedded_postgres.answers(layout), every=0.005)
    wait_for("`up` started it again", lambda: embedded_postgres.answers(layout), 30)


def test_due_retry_is_made_without_the_control_database(battered: Up, receiver: Receiver) -> None:
    """What belongs to a region is found by the region's own periodic job."""
    receiver.behave = answer("503 Busy")
    headers_of_key = {"Authorization": f"Bearer {battered.facts['server_key']}"}
    with httpx.Client(base_url=f"{battered.base_url}/v1", headers=headers_of_key, timeout=30) as client:
        asked = {"url": receiver.url(), "events": ["lists.insert"], "filter": {"name": "without control"}}
        made = client.post("/webhooks", json=asked)
        assert made.status_code == 201, made.text
        owner = battered.facts["app_users"][0]["id"]
        client.post("/rows/lists", json={"name": "without control", "owner_id": owner}).raise_for_status()
        wait_for("the first attempt", lambda: receiver.requests)
        with superuser(battered) as control, database_unavailable(control, "control"):
            before = len(receiver.requests)
            receiver.behave = answer()
            wait_for("another attempt", lambda: len(receiver.requests) > before)
            with superuser(battered, region_database("us-east-1")) as region:
                status = "SELECT status FROM platform.webhooks_delivery WHERE webhook_id = %s"
                wait_for(
                    "it is recorded", lambda: region.execute(status, [made.json()["id"]]).fetchone() == ("delivered",)
                )
        wait_for("all is well again", lambda: client.get("/webhooks").status_code == 200)


def batter(up: Up, valkey: OwnValkey, workers: list[Worker], *, seconds: float, every: float) -> int:
    """One fault after the other: a worker dies by SIGKILL, Redis restarts empty, another worker, then PostgreSQL or the
    worker of `up`, those at most once in half a minute, since `up` gives up on what ends again and again. Returns how
    often a worker was kept from recording its attempts."""
    begun, turn, rested = time.monotonic(), 0, [-60.0, -60.0]
    cut_off = 0
    while (now := time.monotonic()) - begun < seconds:
        time.sleep(every)
        if turn % 4 in (0, 2):
            victim = workers[turn // 2 % 2]
            victim.kill()
            victim.start()
            cut_off += 1
        elif turn % 4 == 1:
            valkey.kill()
            valkey.start()
        elif now - rested[turn // 4 % 2] > 35:
            rested[turn // 4 % 2] = now
            if turn // 4 % 2:
                up.part("platform-worker").kill()
                cut_off += 1
            else:
                restart_postgres(up)
                cut_off += len(workers) + 1
        turn += 1
    return cut_off


@pytest.mark.parametrize(
    ("writes", "seconds", "every"),
    [(1_000, 8.0, 1.2), pytest.param(10_000, 90.0, 2.0, marks=[pytest.mark.slow, pytest.mark.timeout(400)])],
)
def test_a_storm_loses_nothing_and_makes_nothing_up(
    battered: Up,
    own_valkey: OwnValkey,
    workers: list[Worker],
    receiver: Receiver,
    writes: int,
    seconds: float,
    every: float,
) -> None:
    with Storm(battered, receiver, writes, seconds, f"storm-{writes}") as storm:
        cut_off = batter(battered, own_valkey, workers, seconds=seconds, every=every)
    tally = storm.settle()
    print(tally)
    assert (tally.committed, tally.lost, tally.phantom) == (writes, 0, 0), tally
    # Each kill may repeat what the worker had claimed: more of it where the machine is slow. The figure is that of the
    # long form.
    claimed = MAX_CONCURRENCY * PREFETCH_FACTOR
    assert tally.duplicates <= (writes / 100 if writes >= 10_000 else cut_off * claimed), tally
    assert set(tally.answers) <= {"201", "409", "503"}, tally


@pytest.fixture
def platform(battered: Up) -> Iterator[httpx.Client]:
    """The API with the demo's key; webhooks that a test made are gone afterwards."""
    headers = {"Authorization": f"Bearer {battered.facts['server_key']}"}
    with httpx.Client(base_url=f"{battered.base_url}/v1", headers=headers, timeout=30) as client:
        before = {webhook["id"] for webhook in client.get("/webhooks").json()["data"]}
        yield client
        for webhook in client.get("/webhooks").json()["data"]:
            if webhook["id"] not in before:
                assert client.delete(f"/webhooks/{webhook['id']}").status_code == 204


def subscribe(platform: httpx.Client, receiver: Receiver, name: str, **values: Any) -> str:
    body = {"url": receiver.url(), "events": ["lists.insert"], "filter": {"name": name}, **values}
    made = platform.post("/webhooks", json=body)
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


def write_lists(up: Up, platform: httpx.Client, name: str, count: int = 1) -> None:
    rows = [{"name": name, "owner_id": up.facts["app_users"][0]["id"]} for _ in range(count)]
    made = platform.post("/rows/lists", json=rows)
    assert made.status_code == 201, made.text


def rows_told(receiver: Receiver) -> Counter[str]:
    """How often each row was delivered."""
    return Counter(json.loads(one.partition(b"\r\n\r\n")[2])["data"]["id"] for one in list(receiver.requests))


def the_worker(up: Up) -> psutil.Process:
    found: psutil.Process = wait_for(
        "a worker", lambda: next(iter(up.named("platform-worker", parent=up.process.pid)), None)
    )
    return found


def test_f4_workers_killed_in_mid_delivery_send_again_under_the_same_id(
    battered: Up, platform: httpx.Client, workers: list[Worker], receiver: Receiver
) -> None:
    """The receiver has read the request and has not answered yet. And a backlog that was written meanwhile is
    drained."""
    may_answer = threading.Event()

    def behave(connection: socket.socket) -> bool:
        may_answer.wait(60)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        return True

    receiver.behave = behave
    subscribe(platform, receiver, "mid-delivery")
    write_lists(battered, platform, "mid-delivery")
    wait_for("it arrives", lambda: receiver.requests, 30)
    for worker in workers:
        worker.kill()
    the_worker(battered).kill()
    for _ in range(3):
        write_lists(battered, platform, "mid-delivery", 100)
    may_answer.set()
    for worker in workers:
        worker.start()
    wait_for("all arrive", lambda: len(rows_told(receiver)) == 301, 60, every=0.1)
    wait_for("the first came again", lambda: len([n for n in rows_told(receiver).values() if n > 1]) == 1, 30)
    first, second = (one for one in receiver.requests if one.partition(b"\r\n\r\n")[2] == body_of(receiver.requests[0]))
    assert headers(first)["webhook-id"] == headers(second)["webhook-id"]
    assert rows_told(receiver).total() == 302


def body_of(request: bytes) -> bytes:
    return request.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("fault", ["dead", "frozen"])
def test_f6_f7_deliveries_and_their_retries_go_on_without_redis(
    battered: Up, platform: httpx.Client, own_valkey: OwnValkey, receiver: Receiver, fault: str
) -> None:
    the_worker(battered)
    subscribe(platform, receiver, f"redis {fault}")
    if fault == "dead":
        own_valkey.kill()
    else:
        own_valkey.signal(signal.SIGSTOP)
    try:
        receiver.behave = answer("500 Not yet")
        write_lists(battered, platform, f"redis {fault}")
        wait_for("it arrives", lambda: receiver.requests, 60)
        receiver.behave = answer()
        wait_for("it is tried again", lambda: len(receiver.requests) > 1, 60)
    finally:
        if fault == "dead":
            own_valkey.start()
        else:
            own_valkey.signal(signal.SIGCONT)
    assert len({headers(request)["webhook-id"] for request in receiver.requests}) == 1


def test_f27_a_circle_of_a_webhook_and_a_function_is_cut_and_says_so(
    battered: Up, platform: httpx.Client, receiver: Receiver
) -> None:
    """Each delivery makes the receiver invoke a function, which writes the row that the next delivery tells of. The
    receiver knows nothing of the header but to pass it on."""
    source = "export default async ({owner}, ctx) => ctx.rows.insert('lists', {name: 'circle', owner_id: owner})"
    assert platform.put("/functions/circle", json={"source": source}).status_code in (200, 201)
    webhook = subscribe(platform, receiver, "circle")
    write_lists(battered, platform, "circle")
    deliveries = f"/webhooks/{webhook}/deliveries?limit=100"
    followed = 0

    def is_cut() -> list[dict[str, Any]]:
        nonlocal followed
        for request in receiver.requests[followed:]:
            followed += 1
            body = {"input": {"owner": battered.facts["app_users"][0]["id"]}}
            depth = headers(request)["x-platform-depth"]
            platform.post("/functions/circle/invoke", json=body, headers={"X-Platform-Depth": depth})
        return [one for one in platform.get(deliveries).json()["data"] if one["status"] == "dropped"]

    [dropped] = wait_for("the circle is cut", is_cut, 60, every=0.1)
    assert "a chain of 8" in dropped["outcome"], dropped
    assert 2 <= len(receiver.requests) <= 8
    assert platform.delete("/functions/circle").status_code == 204


def test_stopping_workers_record_attempts_in_flight(
    battered: Up, platform: httpx.Client, workers: list[Worker], receiver: Receiver
) -> None:
    may_answer = threading.Event()

    def behave(connection: socket.socket) -> bool:
        may_answer.wait(60)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        return True

    receiver.behave = behave
    webhook = subscribe(platform, receiver, "warm stop")
    write_lists(battered, platform, "warm stop")
    wait_for("it arrives", lambda: receiver.requests, 30)
    leaving = [psutil.Process(worker.process.pid) for worker in workers] + [the_worker(battered)]
    for process in leaving:
        process.terminate()
    time.sleep(1)
    may_answer.set()
    psutil.wait_procs(leaving, 20)
    assert not [process for process in leaving if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    [delivery] = platform.get(f"/webhooks/{webhook}/deliveries").json()["data"]
    assert (delivery["status"], len(delivery["attempts"])) == ("delivered", 1)
    assert len(receiver.requests) == 1
