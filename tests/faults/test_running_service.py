"""A service in use whose processes are not killed: PostgreSQL stalls, another version migrates, a
worker's clock is wrong, a disk is full (F21, F22, F23, and frozen PostgreSQL). Rows are written and told of all the while.
"""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from platform_site.embedded.data_dir import region_database
from tests.faults import inject
from tests.faults.conftest import environments_without_schema, superuser
from tests.faults.write_load import BEAT, SETTINGS, Storm, Worker, assert_nothing_is_lost
from tests.support.load import Load
from tests.support.receiver import Receiver, answer, headers
from tests.support.service import Up, wait_for
from tests.support.timing import within

FINE = {"200", "201", "204"}


@pytest.fixture(scope="module")
def more_settings() -> dict[str, str]:
    return SETTINGS


@pytest.fixture(autouse=True)
def _httpx_is_silent() -> None:
    logging.getLogger("httpx").setLevel(logging.WARNING)


@pytest.fixture
def environment(battered: Up) -> dict[str, str]:
    """What processes beside `up` need to belong to it."""
    return battered.environment


def test_postgresql_stalled_for_two_seconds(battered: Up, token: str, receiver: Receiver) -> None:
    with Load(battered, token, clients=4) as load, Storm(battered, receiver, 300, 6.0, "frozen") as storm:
        time.sleep(1.0)
        inject.freeze_postgres(battered, 2.0)
        over = time.monotonic()
        time.sleep(2.0)
    assert set(load.counts()) <= FINE | {"503 unavailable"}, load.counts()
    assert set(storm.answers) <= {"201", "409", "503"}, storm.answers
    outcomes = [*load.outcomes, *storm.outcomes]
    refused = [one for one in outcomes if one.status == 503]
    assert all(one.retry_after for one in refused)
    assert max(one.seconds for one in outcomes) < within(2.0 + 2.5)
    assert max((one.at + one.seconds for one in refused), default=over) - over < within(5.0)
    assert environments_without_schema(battered) == []
    assert_nothing_is_lost(storm)


def signed_in_to_the_console(up: Up) -> httpx.Cookies:
    console = httpx.Client(base_url=up.base_url, headers={"Accept": "text/html"}, follow_redirects=True, timeout=60)
    page = console.get("/admin/login/?next=/admin/")
    form = {"username": up.facts["admin"]["email"], "password": up.facts["admin"]["password"], "next": "/admin/"}
    form["csrfmiddlewaretoken"] = page.text.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
    assert console.post("/admin/login/", data=form, headers={"Referer": up.base_url}).url.path == "/admin/"
    return console.cookies


def test_long_postgresql_stall_is_503_for_api_and_console(battered: Up, token: str) -> None:
    """Also on open connections, where the kernel acknowledges data that is not read."""
    cookies, people = signed_in_to_the_console(battered), {"Accept": "text/html"}
    console = httpx.Client(base_url=battered.base_url, headers=people, cookies=cookies, timeout=60)
    programs = httpx.Client(base_url=battered.base_url, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def ask(client: httpx.Client, path: str) -> tuple[int, float, bool]:
        begun = time.monotonic()
        answer = client.get(path)
        return answer.status_code, time.monotonic() - begun, "Retry-After" in answer.headers

    with console, programs, ThreadPoolExecutor(24) as pool:
        asked = [(console, "/admin/"), (console, "/admin/projects/project/"), (programs, "/v1/projects")] * 8

        def ask_all() -> list[tuple[int, float, bool]]:
            return [each.result() for each in [pool.submit(ask, *one) for one in asked]]

        for _ in range(3):  # threads and connections
            assert {status for status, _, _ in ask_all()} == {200}
        with inject.frozen_postgres(battered):
            at_first, later = ask_all(), ask_all()
        assert {(status, says_when) for status, _, says_when in at_first + later} == {(503, True)}
        # The timeout, the probe, and requests admitted meanwhile.
        assert max(seconds for _, seconds, _ in at_first) < within(4 + 2 + 2 + 1)
        assert max(seconds for _, seconds, _ in later) < within(2.5)
        wait_for("all is well again", lambda: {status for status, _, _ in ask_all()} == {200}, within(5))


def test_f21_the_next_release_migrates_while_this_one_serves(
    battered: Up, token: str, receiver: Receiver, environment: dict[str, str], tmp_path: Path
) -> None:
    """The rules of docs/how-to/operations/upgrades.md, "Write a migration": a migration that follows them is not noticeable."""
    tree = inject.next_release(tmp_path)
    try:
        with Load(battered, token, clients=4) as load, Storm(battered, receiver, 400, 6.0, "migrated") as storm:
            said = inject.migrate(battered, tree, environment)
            migrated_at = time.monotonic()
            time.sleep(2.0)
        assert said.count("9999_next_release") >= 4, said
        assert set(load.counts()) <= FINE, load.counts()
        assert set(storm.answers) == {"201"}, storm.answers
        assert [one for one in load.outcomes if one.at > migrated_at], "and goes on afterwards"
        assert_nothing_is_lost(storm)
    finally:
        inject.forget_next_release(battered)


def test_f21_a_migration_that_met_a_table_in_use_tries_again(
    battered: Up, environment: dict[str, str], tmp_path: Path
) -> None:
    tree = inject.next_release(tmp_path)
    hurried = environment | {"LOCK_TIMEOUT_MS": "300"}
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%of_the_next_release%'"
    )
    try:
        with (
            ThreadPoolExecutor(1) as beside,
            superuser(battered, region_database("us-east-1")) as watch,
            superuser(battered, region_database("us-east-1")) as connection,
        ):

            def waiting() -> bool:
                return watch.execute(waits).fetchone() == (1,)

            with connection.transaction():
                connection.execute("LOCK TABLE platform.webhooks_delivery IN ROW EXCLUSIVE MODE")
                migrating = beside.submit(inject.migrate, battered, tree, hurried)
                for _ in range(2):
                    wait_for("it waits for the table", waiting, 60, every=0.01)
                    wait_for("and steps aside", lambda: not waiting(), every=0.01)
            said = migrating.result()
        assert "Other transactions lock what it changes" in said, said
        assert "lock timeout" in said, said
        with superuser(battered, region_database("us-east-1")) as connection:
            connection.execute("SELECT of_the_next_release FROM platform.webhooks_delivery LIMIT 1")
    finally:
        inject.forget_next_release(battered)


@pytest.mark.skipif(not inject.FAKETIME.exists(), reason="there is no libfaketime on this machine")
@pytest.mark.parametrize("seconds", [600, -600])
def test_worker_with_wrong_clock_delivers_on_time_with_valid_signature(
    battered: Up, receiver: Receiver, environment: dict[str, str], seconds: int, tmp_path: Path
) -> None:
    """Due times, leases and signed times use the clock of the database; notifications of a beat with another clock
    count."""
    tried: set[bytes] = set()

    def fail_once(connection: object) -> object:
        body = receiver.requests[-1].partition(b"\r\n\r\n")[2]
        if body in tried:
            return answer()(connection)  # type: ignore[arg-type]
        tried.add(body)
        return answer("500 Oh")(connection)  # type: ignore[arg-type]

    receiver.behave = fail_once
    worker = Worker(battered, environment | inject.shifted(seconds), log=str(tmp_path / "worker.log"))
    beat = Worker(battered, environment, command=BEAT)
    try:
        wait_for("it works", lambda: "ready." in worker.said(), 60, every=0.1)
        with inject.without_the_worker_of(battered):
            with Storm(battered, receiver, 20, 4.0, f"shifted{seconds}") as storm:
                pass
            storm.drain(30)
            wait_for("each is sent a second time", lambda: len(receiver.requests) >= 40, 30)
        signed = [int(headers(request)["webhook-timestamp"]) for request in list(receiver.requests)]
        assert max(abs(time.time() - each) for each in signed) < 120, "not by the worker's own clock"
        with superuser(battered, region_database("us-east-1")) as connection:
            found = connection.execute(
                "SELECT count(*) FROM platform.webhooks_delivery WHERE webhook_id = %s AND attempts > 2",
                [storm.webhook_id],
            ).fetchone()
        assert found == (0,), "no lease was taken for over, no retry for due"
        assert_nothing_is_lost(storm)
        assert "Discarding revoked task" not in worker.said(), "no notification counts as too old"
        assert " error " not in worker.said()
    finally:
        worker.kill()
        beat.kill()


@pytest.mark.skipif(not inject.FAKETIME.exists(), reason="there is no libfaketime on this machine")
@pytest.mark.parametrize("seconds", [600, -600])
def test_web_host_with_wrong_clock_affects_only_access_tokens(
    battered: Up, receiver: Receiver, environment: dict[str, str], seconds: int
) -> None:
    """Rows, events, idempotency and refresh tokens go by the database's clock. Access tokens are read by each host's own
    (docs/how-to/deployment.md, "Several machines"): tokens from the future or past their time are refused."""
    with inject.another_web(battered, environment | inject.shifted(seconds)) as there:
        with Storm(there, receiver, 40, 2.0, f"web{seconds}") as storm:
            pass
        storm.up = battered
        assert set(storm.answers) == {"201"}, storm.answers
        assert_nothing_is_lost(storm)
        row = {"name": "once", "owner_id": battered.facts["app_users"][0]["id"]}
        once = storm.headers | {"Idempotency-Key": f"once-{time.monotonic_ns()}"}
        made = [httpx.post(f"{up.base_url}/v1/rows/lists", json=row, headers=once) for up in (there, battered, there)]
        assert [answer.status_code for answer in made] == [201] * 3
        assert len({answer.json()["id"] for answer in made}) == 1
        age = time.time() - datetime.fromisoformat(made[0].json()["created_at"]).timestamp()
        assert abs(age) < 60, "the database's"

        account = battered.facts["account"]
        body = {"grant_type": "password", "email": account["email"], "password": account["password"]}
        for issuer, reader in ((there, battered), (battered, there)):
            begun = httpx.post(f"{issuer.base_url}/v1/auth/token", json=body).json()
            renewal = {"grant_type": "refresh_token", "refresh_token": begun["refresh_token"]}
            assert httpx.post(f"{reader.base_url}/v1/auth/token", json=renewal).status_code == 200
            bearer = {"Authorization": f"Bearer {begun['access_token']}"}
            assert httpx.get(f"{issuer.base_url}/v1/projects", headers=bearer).status_code == 200
            is_of_the_future = (issuer is there) == (seconds > 0)
            read = httpx.get(f"{reader.base_url}/v1/projects", headers=bearer).status_code
            assert read == (401 if is_of_the_future else 200)


def test_full_disk_for_the_log_stops_no_process(
    battered: Up, token: str, receiver: Receiver, environment: dict[str, str]
) -> None:
    """Web and worker that can write no line: they answer and deliver as ever."""
    worker = Worker(battered, environment, log="/dev/full")
    try:
        with (
            inject.another_web(battered, environment, log="/dev/full") as there,
            inject.without_the_worker_of(battered),
            Load(there, token, clients=2) as load,
            Storm(there, receiver, 100, 3.0, "full-disk") as storm,
        ):
            storm.__exit__()
            storm.drain(30)
        assert set(load.counts()) <= FINE, load.counts()
        assert set(storm.answers) == {"201"}, storm.answers
        assert worker.process.poll() is None
        storm.up = battered  # the other has ended
        assert_nothing_is_lost(storm)
    finally:
        worker.kill()
