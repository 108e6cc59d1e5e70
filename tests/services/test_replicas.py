"""The service with a real streaming replica of one region: what it may answer, and what it must not.

Two web processes, connections of one request each, so that writes through one process are read through the other.
"""

import itertools
import json
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout, region_database
from tests.support.service import Up, start_up, wait_for
from tests.support.standby import Standby, counted
from tests.support.timing import within

pytestmark = [pytest.mark.timeout(240), pytest.mark.served]

REGION = "us-east-1"
REPLICA = f"{REGION}-replica-1"
LIMIT = 1.0


class Service:
    """The service and its replica, and how a test asks them."""

    def __init__(self, up: Up, standby: Standby) -> None:
        self.up, self.standby = up, standby
        self.key = up.facts["server_key"]
        self.environment = up.facts["environments"]["production"]
        self.owners = [user["id"] for user in up.facts["app_users"]]
        self._numbers = itertools.count(1)
        # A connection a request: the next one may well be another process's.
        self.client = httpx.Client(base_url=up.base_url, timeout=30, limits=httpx.Limits(max_keepalive_connections=0))

    def call(
        self, method: str, path: str, body: Any = None, token: str | None = None, **headers: str
    ) -> httpx.Response:
        sent = {"Authorization": f"Bearer {token or self.key}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return self.client.request(method, f"/v1{path}", json=body, headers=sent)

    def do(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        answer = self.call(method, path, body, token)
        assert answer.status_code < 300, f"{path}: {answer.text}\n{self.up.output[-3000:]}"
        return answer.json() if answer.content else None

    def sign_in(self, user: dict[str, str]) -> str:
        body = {"grant_type": "password", "email": user["email"], "password": user["password"]}
        answer = self.call("POST", "/auth/token", body, X_Environment=self.environment)
        token: str = answer.json()["access_token"]
        return token

    def make(self, name: str = "as it was", owner: int = 0) -> str:
        """A new list; its id."""
        row_id = f"list-{next(self._numbers)}"
        self.do("POST", "/rows/lists", {"id": row_id, "name": name, "owner_id": self.owners[owner]})
        return row_id

    def name(self, row_id: str) -> str:
        found: str = self.do("GET", f"/rows/lists/{row_id}")["name"]
        return found

    def counted(self, outcome: str) -> int:
        return counted(self.client.get("/metrics").text, REPLICA, outcome)

    def state(self) -> dict[str, Any]:
        answer = self.client.get("/readyz").json()
        found: dict[str, Any] = answer["replicas"]
        assert answer["dependencies"][REGION] == "ok"
        return found

    def behind_the_back(self, row_id: str, name: str) -> None:
        """Change a row in the primary so that the service does not notice."""
        change = sql.SQL("UPDATE {} SET name = %s WHERE id = %s").format(sql.Identifier(self.environment, "lists"))
        with self.primary() as connection:
            connection.execute(change, [name, row_id])

    def primary(self) -> "psycopg.Connection[tuple[object, ...]]":
        return embedded_postgres.connect(Layout(self.up.data_dir), region_database(REGION))

    def is_answered_by_the_replica(self, path: str = "/rows/tasks?limit=1") -> bool:
        before = self.counted("answered")
        self.do("GET", path)
        return self.counted("answered") > before

    def settle(self) -> None:
        """Until both processes let the replica answer."""
        wait_for("the replica answers", lambda: all(self.is_answered_by_the_replica() for _ in range(8)), 30, every=0.1)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """The replica replays nothing meanwhile."""
        wait_for("it has replayed everything", self._is_level, 30)
        self.standby.execute("SELECT pg_wal_replay_pause()")
        paused = "SELECT pg_get_wal_replay_pause_state() = 'paused'"
        wait_for("it is stopped", lambda: self.standby.execute(paused) == [(True,)], 10)
        try:
            yield
        finally:
            self.standby.execute("SELECT pg_wal_replay_resume()")

    def _is_level(self) -> bool:
        with self.primary() as connection:
            written = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
        assert written is not None
        return self.standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{written[0]}'") == [(True,)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("replicas")
    for path in (directory, directory / "standby"):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
    layout = Layout(directory / "data")
    standby = Standby(layout, directory / "standby")
    (directory / "primary").symlink_to(layout.sockets)
    by_mistake = Standby(layout, directory / "primary")
    # Of two hosts the first is not there: libpq goes on to the next.
    several = standby.url(REGION).replace("?host=", f"?host={directory / 'nobody'},")
    environment = {
        "REGION_US_EAST_1_REPLICA_URLS": f"{several}, {by_mistake.url(REGION)}",
        "REGION_EU_WEST_1_REPLICA_URLS": standby.url(REGION),
        "REPLICA_LAG_LIMIT_MS": str(int(LIMIT * 1000)),
        "LOG_FORMAT": "json",
    }
    up = start_up(directory / "data", "--workers", "2", environment=environment)
    try:
        standby.make()
        standby.start()
        yield Service(up, standby)
    finally:
        standby.stop()
        assert up.stop() == 0, up.output


@pytest.fixture(autouse=True)
def _settled(service: Service) -> None:
    service.settle()


def test_pages_rows_and_counts_come_from_the_replica_and_say_so(service: Service) -> None:
    first = service.do("GET", "/rows/tasks?limit=1")["data"][0]["id"]
    before = service.counted("answered")
    service.do("GET", "/rows/tasks?limit=2&with=list&count=exact")
    service.do("POST", "/rows/tasks/query", {"limit": 2, "count": "estimated"})
    service.do("POST", "/rows/tasks/aggregate", {"group": ["title"], "count": True})
    service.do("GET", f"/rows/tasks/{first}?with=list")
    assert service.counted("answered") == before + 6
    request_id = service.call("GET", f"/rows/tasks/{first}").headers["X-Request-Id"]

    def line() -> str | None:
        return next((line for line in service.up.lines if request_id in line and '"request"' in line), None)

    assert json.loads(wait_for("its line", line).partition("│")[2])["replica"] == REPLICA


def test_a_function_reads_from_the_primary(service: Service) -> None:
    source = "export default async (input, ctx) => (await ctx.rows.list('tasks', {limit: 1})).data.length"
    service.do("PUT", "/functions/reads", {"source": source})
    before = service.counted("answered")
    assert service.do("POST", "/functions/reads/invoke", {"input": {}})["output"] == 1
    assert service.counted("answered") == before


def test_acknowledged_write_is_read_in_every_process(service: Service) -> None:
    token = service.sign_in(service.up.facts["app_users"][0])
    before = service.counted("answered")

    def write_and_read(_: int) -> None:
        row_id = service.make("new")
        for turn in range(6):
            service.do("PATCH", f"/rows/lists/{row_id}", {"name": f"{turn}"}, (token, None)[turn % 2])
            found = service.do("GET", f"/rows/lists/{row_id}", token=(token, None)[turn // 2 % 2])
            assert found["name"] == f"{turn}"
        service.do("DELETE", f"/rows/lists/{row_id}")
        assert service.call("GET", f"/rows/lists/{row_id}").status_code == 404

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write_and_read, range(16)))
    assert service.counted("answered") > before
    with service.standing_still():
        row_id = service.make("still")
        assert service.name(row_id) == "still"
        source = f"export default (input, ctx) => ctx.rows.update('lists', '{row_id}', {{name: 'by a function'}})"
        service.do("PUT", "/functions/writes", {"source": source})
        assert service.call("POST", "/functions/writes/invoke", {"input": {}}).status_code == 200
        assert service.name(row_id) == "by a function"


def test_a_replica_that_lags_is_left_out_within_the_limit_and_comes_back(service: Service) -> None:
    row_id = service.make()
    service.settle()
    with service.standing_still():
        service.behind_the_back(row_id, "changed")
        time.sleep(LIMIT)
        # Not about speed: a reader that begins now may get nothing older, however slow it is.
        assert {service.name(row_id) for _ in range(20)} == {"changed"}
        wait_for("it is said", lambda: service.state()[REPLICA]["state"] == "lagging", 10, every=0.1)
        assert service.state()[REPLICA]["lag_seconds"] > LIMIT
        assert service.client.get("/readyz?require=all").status_code == 200
        assert not service.is_answered_by_the_replica()
    service.settle()
    assert service.state()[REPLICA]["state"] == "ok"


def test_marks_that_redis_lost_send_readers_to_the_primary(service: Service) -> None:
    row_id = service.make()
    service.settle()
    with service.standing_still():
        service.do("PATCH", f"/rows/lists/{row_id}", {"name": "before the flush"})
        flush(service)
        assert {service.name(row_id) for _ in range(20)} == {"before the flush"}


def flush(service: Service) -> None:
    import redis

    with redis.Redis.from_url(Layout(service.up.data_dir).redis_url()) as client:
        # The users' data, as a restart of Redis would take it; the command itself is not for the service's user.
        for key in client.scan_iter():
            client.delete(key)


def test_a_stranger_finds_on_the_replica_what_it_finds_on_the_primary(service: Service) -> None:
    own, foreign = service.make("alice's", 0), service.make("bob's", 1)
    tokens = [service.sign_in(user) for user in service.up.facts["app_users"]]
    paths = [
        f"/rows/lists/{own}",
        f"/rows/lists/{foreign}",
        "/rows/lists?count=exact",
        "/rows/tasks?with=list",
        "/rows/nothing",
    ]

    def answers() -> list[tuple[int, str]]:
        found = [service.call("GET", path, token=token) for token in tokens for path in paths]
        return [(one.status_code, one.text if one.status_code == 200 else "") for one in found]

    service.settle()
    by_the_replica = answers()
    assert [status for status, _ in by_the_replica[:2]] == [200, 404]
    assert service.counted("empty") > 0  # a 404 is the primary's word
    with service.standing_still():
        wait_for("it is left out", lambda: service.state()[REPLICA]["state"] == "lagging", 10, every=0.1)
        assert answers() == by_the_replica


def test_a_schema_change_that_the_replica_has_not_replayed(service: Service) -> None:
    row_id = service.make()
    token = service.sign_in(service.up.facts["app_users"][0])
    assert service.call("GET", f"/rows/lists/{row_id}", token=token).status_code == 200
    document = service.do("GET", "/schema")["document"]
    changed = json.loads(json.dumps(document))
    changed["tables"]["lists"]["columns"]["colour"] = {"type": "text", "default": "red"}
    changed["tables"]["lists"]["rules"]["user"]["read"] = {"where": {"name": "nobody's"}}
    service.settle()
    with service.standing_still():
        service.do("PUT", "/schema", {"document": changed})
        for _ in range(20):
            assert service.do("GET", f"/rows/lists/{row_id}")["colour"] == "red"
            assert service.do("GET", "/rows/lists?order=colour")["data"][0]["colour"] == "red"
            assert service.call("GET", f"/rows/lists/{row_id}", token=token).status_code == 404
    service.do("PUT", "/schema", {"document": document, "confirm": ["drop column lists.colour"]})
    assert service.call("GET", f"/rows/lists/{row_id}", token=token).status_code == 200


def test_time_queries_go_to_the_server_that_stamps_rows(service: Service) -> None:
    document = service.do("GET", "/schema")["document"]
    timed = json.loads(json.dumps(document))
    timed["tables"]["lists"]["rules"]["user"]["read"] = {"where": {"created_at": {"$lte": "$now"}}}
    row_id, token = service.make(), service.sign_in(service.up.facts["app_users"][1])
    service.do("PUT", "/schema", {"document": timed})
    service.settle()
    answered = service.counted("answered")
    for _ in range(10):
        assert service.call("GET", f"/rows/lists/{row_id}", token=token).status_code == 200
    assert service.counted("answered") == answered
    service.do("PUT", "/schema", {"document": document})


def test_under_load_a_schema_that_changes_is_never_a_500(service: Service) -> None:
    document = service.do("GET", "/schema")["document"]
    with reading(service) as statuses:
        for turn in range(6):
            document["tables"]["lists"]["columns"][f"turn_{turn}"] = {"type": "integer", "default": turn}
            service.do("PUT", "/schema", {"document": document})
            found = service.do("GET", "/rows/lists?limit=1")["data"][0]
            assert found[f"turn_{turn}"] == turn
    assert set(statuses) == {200}


def test_a_replica_killed_in_mid_load_fails_no_request_and_comes_back(service: Service) -> None:
    with reading(service) as statuses:
        time.sleep(0.5)
        service.standby.kill()
        time.sleep(2)
        wait_for("it is said", lambda: service.state()[REPLICA]["state"] == "down", 10, every=0.1)
        service.standby.start()
        service.settle()
    assert set(statuses) == {200}
    assert len(statuses) > 50


def test_frozen_replica_causes_no_long_wait(service: Service) -> None:
    with reading(service) as statuses:
        time.sleep(0.3)
        service.standby.signal_all(signal.SIGSTOP)
        try:
            time.sleep(LIMIT)
            before = list(statuses.of_each)
            wait_for("all sessions continue", lambda: all(map(int.__gt__, statuses.of_each, before)), within(LIMIT))
            wait_for("it is said", lambda: service.state()[REPLICA]["state"] == "down", 10, every=0.1)
        finally:
            service.standby.signal_all(signal.SIGCONT)
        service.settle()
    assert set(statuses) == {200}


def test_what_a_replica_cancels_for_its_replay_the_primary_answers(service: Service) -> None:
    with service.primary() as connection:
        table = sql.Identifier(service.environment, "lists")
        rows = "SELECT 'many-' || n, 'many', %s FROM generate_series(1, 20000) n ON CONFLICT DO NOTHING"
        connection.execute(sql.SQL("INSERT INTO {} (id, name, owner_id) " + rows).format(table), [service.owners[0]])
        conflicts = "SELECT sum(confl_snapshot + confl_lock + confl_bufferpin) FROM pg_stat_database_conflicts"
        where = json.dumps({"name": {"$like": "%nothing like it%"}})
        service.settle()

        def cancelled() -> bool:
            connection.execute(sql.SQL("UPDATE {} SET name = 'more' WHERE id LIKE 'many-%%'").format(table), [])
            connection.execute(sql.SQL("VACUUM {}").format(table))
            return int(str(service.standby.execute(conflicts)[0][0])) > 0 and service.counted("failed") > before

        before = service.counted("failed")
        with reading(service, f"/rows/lists?where={where}&count=exact") as statuses:
            wait_for("a conflict", cancelled, 60)
        connection.execute(sql.SQL("DELETE FROM {} WHERE id LIKE 'many-%%'").format(table), [])
    assert set(statuses) == {200}


def test_a_replica_may_confirm_what_a_client_has_and_never_takes_it_back(service: Service) -> None:
    row_id = service.make("old")
    path = f"/rows/lists/{row_id}"
    old = service.call("GET", path).headers["ETag"]
    service.settle()
    assert service.call("GET", path, If_None_Match=old).status_code == 304
    with service.standing_still():
        service.behind_the_back(row_id, "new")
        # What the replica has differs from what this client has, so the primary says which is newer.
        assert service.call("GET", path, If_None_Match='"another"').json()["name"] == "new"
        new = service.call("GET", path, If_None_Match='"another"').headers["ETag"]
        assert service.call("GET", path, If_None_Match=new).status_code == 304


def test_servers_named_by_mistake_answer_nothing(service: Service) -> None:
    """The second URL of one region leads to its primary, that of another region to this region's replica."""
    service.call("GET", "/rows/tasks")
    states = wait_for("all were seen", lambda: "down" not in str(found := service.state()) and found, 10, every=0.1)
    assert {name: one["state"] for name, one in states.items()} == {
        REPLICA: "ok", f"{REGION}-replica-2": "primary", "eu-west-1-replica-1": "foreign",
    }  # fmt: skip
    text = service.client.get("/metrics").text
    assert counted(text, f"{REGION}-replica-2", "answered") == 0
    assert f'platform_replica_lag_seconds{{replica="{REPLICA}"}}' in text


class Statuses(list[int]):
    def __init__(self, clients: int) -> None:
        super().__init__()
        self.of_each = [0] * clients
        """How many answers each client has got."""


@contextmanager
def reading(service: Service, path: str = "/rows/tasks?limit=5") -> Iterator[Statuses]:
    """Four clients that read meanwhile; their statuses."""
    statuses, is_over = Statuses(4), threading.Event()

    def read(number: int) -> None:
        headers = {"Authorization": f"Bearer {service.key}"}
        with httpx.Client(base_url=f"{service.up.base_url}/v1", headers=headers, timeout=30) as client:
            while not is_over.is_set():
                statuses.append(client.get(path).status_code)
                statuses.of_each[number] += 1

    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(read, number) for number in range(4)]
        try:
            yield statuses
        finally:
            is_over.set()
    for one in found:
        one.result()
