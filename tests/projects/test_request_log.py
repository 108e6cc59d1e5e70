"""`GET /v1/logs`: members and keys read which requests an environment answered, and nothing that clients wrote.

The attackers here: keys of other environments, somebody who names another's environment, somebody who puts a secret
wherever a request has text, and one who sends more than the log can take. And PostgreSQL, which goes away.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import OperationalError, connections
from django.test import RequestFactory

from accounts import audit
from accounts.models import User
from platform_site.http.errors import FieldError, ValidationFailed
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.request_log import partitions, reader, recording
from platform_site.request_log.models import OmittedRequests
from projects import services
from projects.directory.environments import environment_ref
from projects.models import Environment, Project
from projects.tasks import remove_orphaned_rows
from tests.projects.conftest import key_for, make_project, publishable_key_for, token_of
from tests.support.client import Api
from tests.support.request_log import Log
from tests.support.timing import within

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

REGION = "us-east-1"
TASKS = {"tables": {"tasks": {"columns": {"title": {"type": "text", "max_length": 5}}}}}
SECRET = "sk_" + "a1b2" * 10


@pytest.fixture
def log() -> Iterator[Log]:
    yield Log()
    recording.queues.clear()


@pytest.fixture
def admin_key(production: Environment) -> str:
    return key_for(
        production.pk, "schema:write", "schema:read", "rows:read", "rows:write", "rows:bypass_rules", "logs:read"
    )


@pytest.fixture
def key(api: Api, admin_key: str) -> str:
    """A key of production, which has the table `tasks`."""
    answer = api.request("PUT", "/v1/schema", token=admin_key, json={"document": TASKS})
    assert answer.status == 200, answer.json
    return admin_key


def entries(api: Api, log: Log, token: str, query: str = "", **how: Any) -> list[dict[str, Any]]:
    log.written()
    answer = api.get(f"/v1/logs?{query}", token=token, **how)
    assert answer.status == 200, answer.json
    return list(answer.json["data"])


def entry_of(environment: EnvironmentRef | None, at: datetime, **more: Any) -> recording.Entry:
    facts = {
        "at": at.timestamp(), "environment": environment, "request_id": "req_1", "method": "GET", "route": "v1/rows/<str:table>",
        "table": "tasks", "function": None, "status": 200, "code": None, "field_codes": (), "duration_ms": 1.5,
        "caller_kind": "key", "caller_id": "key_1",
    }  # fmt: skip
    return recording.Entry(**facts | more)


def test_an_entry_says_what_became_of_a_request(api: Api, key: str, log: Log) -> None:
    good = api.post("/v1/rows/tasks", token=key, json={"title": "milk"})
    bad = api.post("/v1/rows/tasks", token=key, json={"title": "oat milk", "colour": "white"})
    absent = api.get("/v1/rows/tasks/tas_01k60000000000000000000000", token=key)
    first, second, third = entries(api, log, key)[::-1]
    assert first.pop("at").endswith("Z")
    assert first.pop("duration_ms") > 0
    caller = first.pop("caller")
    assert caller["kind"] == "key"
    assert caller["id"].startswith("key_")
    assert first == {
        "request_id": good.headers["X-Request-Id"], "method": "POST", "route": "/v1/rows/{table}", "table": "tasks",
        "function": None, "status": 201, "code": None, "field_codes": [],
    }  # fmt: skip
    assert (second["request_id"], second["status"]) == (bad.headers["X-Request-Id"], 422)
    assert (second["code"], second["table"]) == ("validation_failed", "tasks")
    assert second["field_codes"] == sorted(bad.fields.values(), key=second["field_codes"].index)
    assert {*second["field_codes"]} == {"too_long", "unknown"}
    assert (third["request_id"], third["status"], third["code"]) == (absent.headers["X-Request-Id"], 404, "not_found")
    assert third["route"] == "/v1/rows/{table}/{row_id}"


def test_filters(api: Api, key: str, log: Log) -> None:
    api.post("/v1/rows/tasks", token=key, json={"title": "milk"})
    bad = api.post("/v1/rows/tasks", token=key, json={"title": "oat milk"})
    api.get("/v1/schema", token=key)
    log.written()
    caller = entries(api, log, key)[0]["caller"]["id"]

    def statuses(query: str) -> list[int]:
        return [each["status"] for each in entries(api, log, key, query)]

    assert statuses(f"request_id={bad.headers['X-Request-Id']}") == [422]
    assert statuses("status=422") == statuses("status=4xx") == [422]
    assert statuses("status=2xx&method=POST") == [201]
    assert statuses("route=/v1/schema") == [200]
    assert statuses("table=tasks") == [422, 201]
    assert statuses("function=nightly") == statuses("caller=usr_1") == statuses("status=500") == []
    assert statuses(f"caller={caller}&table=tasks") == [422, 201]
    moment = next(each["at"] for each in entries(api, log, key, "status=422"))
    assert statuses(f"since={moment}&until={moment}") == []
    assert statuses(f"since={moment}&method=POST") == [422]
    assert statuses(f"until={moment}") == [201]


@pytest.mark.parametrize(
    ("query", "field", "code"),
    [
        ("status=600", "status", "malformed"),
        ("status=4x", "status", "malformed"),
        ("since=yesterday", "since", "invalid"),
        ("request_id=" + "x" * 65, "request_id", "too_long"),
        ("path=/v1/rows", "path", "unknown_parameter"),
        ("limit=0", "limit", "out_of_range"),
        ("cursor=nonsense", "cursor", "invalid_cursor"),
    ],
)
def test_bad_parameters_are_named(api: Api, key: str, query: str, field: str, code: str) -> None:
    answer = api.get(f"/v1/logs?{query}", token=key)
    assert (answer.status, answer.fields) == (422, {field: code})


def test_pages_have_each_entry_once_and_cursors_open_no_other_list(api: Api, key: str, log: Log, bob: User) -> None:
    for number in range(7):
        api.post("/v1/rows/tasks", token=key, json={"title": f"{number}"})
    log.written()
    seen, cursor = [], ""
    while cursor is not None:
        page = api.get(f"/v1/logs?limit=3&method=POST{cursor and '&cursor=' + cursor}", token=key).json
        seen += [each["request_id"] for each in page["data"]]
        cursor, last = page["next_cursor"], cursor
    assert len(seen) == len({*seen}) == 7
    assert api.get(f"/v1/logs?limit=3&cursor={last}", token=key).fields == {"cursor": "invalid_cursor"}
    other = key_for(make_project(bob, "Other").environments.first().pk, "logs:read")
    assert api.get(f"/v1/logs?limit=3&method=POST&cursor={last}", token=other).fields == {"cursor": "invalid_cursor"}


def test_a_filter_that_little_matches_reads_a_bounded_part(
    api: Api, key: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_SCANNED", 3)
    api.post("/v1/rows/tasks", token=key, json={"title": "first"})
    for _ in range(5):
        api.get("/v1/schema", token=key)
    log.written()
    pages, cursor = [], ""
    while cursor is not None:
        page = api.get(f"/v1/logs?method=POST{cursor and '&cursor=' + cursor}", token=key).json
        pages.append([each["status"] for each in page["data"]])
        cursor = page["next_cursor"]
    assert pages == [[], [201]] or pages == [[], [201], []]


@pytest.mark.parametrize(("role", "status"), [("owner", 200), ("developer", 200), ("viewer", 403)])
def test_owners_and_developers_read_it(
    api: Api, alice: User, bob: User, project: Project, production: Environment, role: str, status: int
) -> None:
    services.add_member(project.pk, email=bob.email, role=role, actor=audit.SYSTEM)
    assert api.get("/v1/logs", token=token_of(bob), environment=production.pk).status == status


def test_no_other_credential_reads_it(api: Api, production: Environment, make_account: Any, charlie: User) -> None:
    user = make_account("ulla", pool_id=production.pk)
    assert api.get("/v1/logs", token=key_for(production.pk, "rows:read")).status == 403
    assert api.get("/v1/logs", token=publishable_key_for(production.pk)).status == 403
    assert api.get("/v1/logs", token=token_of(user, production.pk)).status == 403
    assert api.get("/v1/logs", token=token_of(charlie), environment=production.pk).status == 404
    assert api.get("/v1/logs").status == 401


def test_an_entry_belongs_to_the_environment_of_the_credential(
    api: Api, key: str, production: Environment, log: Log, bob: User
) -> None:
    """Naming another's environment, with a credential of one's own or with none, writes nothing there."""
    environment = make_project(bob, "Other").environments.get(name="production")
    other = key_for(environment.pk, "rows:read", "logs:read")
    named = {"environment": production.pk}
    assert api.get("/v1/rows/tasks", token=other, **named).status == 404
    assert api.get("/v1/rows/tasks", token=token_of(bob), **named).status == 404
    assert api.get("/v1/rows/tasks", token=SECRET, **named).status == 401
    assert api.get("/v1/rows/tasks", **named).status == 401
    assert api.post("/v1/auth/token", json={"grant_type": "password", "email": "a@b.example", "password": "x"}, **named)
    host = f"{production.pk.replace('_', '-')}.{settings.PLATFORM_DOMAIN}"
    assert api.get("/v1/rows/tasks", headers={"Host": host}).status in (400, 401)
    api.get("/v1/schema", token=other)
    assert entries(api, log, key, "route=/v1/rows/{table}") == []
    assert [each.environment_id for each in log.written() if each.route.startswith("/v1/rows")] == [None] * 5
    [only] = entries(api, log, other)
    assert (only["route"], only["status"]) == ("/v1/schema", 403)


def test_nothing_that_a_client_wrote_is_in_it(api: Api, key: str, log: Log) -> None:
    """A secret in each place where a request has text."""
    api.get(f"/v1/rows/{SECRET}", token=key)
    api.get(f"/v1/rows/{SECRET.lower()}_x", token=key)
    api.get(f"/v1/rows/tasks/{SECRET}", token=key)
    api.get(f"/v1/rows/tasks?where={SECRET}&order={SECRET}&{SECRET}=1", token=key)
    api.post("/v1/rows/tasks", token=key, json={"title": SECRET, SECRET: SECRET})
    api.post(f"/v1/functions/{SECRET}/invoke", token=key, json={})
    api.get(f"/v1/functions/{SECRET}", token=key)
    api.get(f"/v1/{SECRET}", token=key)
    api.get(f"/{SECRET}")
    api.get("/v1/schema", token=SECRET)
    api.get("/v1/schema", token=key, headers={"X-Request-Id": SECRET, "User-Agent": SECRET, "X-Environment": SECRET})
    api.request("PROPFIND", "/v1/schema", token=key)
    api.post("/v1/auth/password-reset", json={"email": "ulla@example.org"}, remote_addr="203.0.113.7")
    found = log.written()
    assert len(found) >= 13
    stored = repr([vars(each) for each in found])
    for text in ("a1b2", "ulla", "example.org", "203.0.113.7", "PROPFIND"):
        assert text not in stored
    assert {each.table_name for each in found} == {None, "tasks"}


@pytest.mark.parametrize("text", ["a\tb", "a\nb", "a\0", "Tasks", "a b", "é", "", None])
def test_what_is_no_name_is_not_recorded(text: str | None) -> None:
    assert recording.name_in({"table": text}, "table") is None


def test_a_code_of_another_form_is_not_recorded() -> None:
    error = ValidationFailed(fields=[FieldError("a", code, "") for code in ("too_long", 'x","y', "A", "too_long")])
    assert recording.field_codes_of(error) == ("too_long",)


def test_routes_of_any_form_are_written(production: Environment, log: Log) -> None:
    environment, now = environment_ref(production.pk), datetime.now(UTC)
    routes = {"": "(unknown)", r"^admin/(?P<path>\d+)/$": r"/^admin/(?P{path}\d+)/$", "a\tb\nc": "/a\tb\nc"}
    recording.queues[REGION].waiting.extend([entry_of(environment, now, route=route) for route in routes])
    recording.queues["default"].waiting.append(
        entry_of(None, now, table=None, caller_kind=None, caller_id=None, field_codes=("a", "b_1"))
    )
    without, *others = log.written()
    assert [each.route for each in others] == [*routes.values()]
    assert (without.table_name, without.code, without.field_codes) == (None, None, ["a", "b_1"])
    assert (without.environment_id, without.caller_id, without.keep_days) == (None, None, 7)


def test_names_are_kept_after_errors_if_they_exist(api: Api, key: str, log: Log) -> None:
    powerless = key_for(environment_of_key(log, api, key), "webhooks:read")
    api.get("/v1/rows/tasks", token=powerless)
    api.get("/v1/rows/task", token=powerless)
    found = [each for each in log.written() if each.status == 403]
    assert [each.table_name for each in found] == ["tasks", None]


def environment_of_key(log: Log, api: Api, key: str) -> str:
    api.get("/v1/schema", token=key)
    return str(log.written()[-1].environment_id)


def test_a_deleted_environment_leaves_nothing(
    api: Api, key: str, log: Log, project: Project, production: Environment
) -> None:
    recording.queues[REGION].tallies[production.pk] = recording.Tally(omitted=3)
    api.get("/v1/schema", token=key)
    assert log.written()
    owner = token_of(User.objects.get(memberships__project=project.pk, memberships__role="owner"))
    services.delete_project(project.pk, actor=audit.SYSTEM)
    assert api.get("/v1/logs", token=key).status == 401
    assert api.get("/v1/logs", token=owner, environment=production.pk).status == 404
    assert [each for each in log.written() if each.environment_id] == []
    assert not OmittedRequests.objects.using(REGION).exists()


def test_a_batch_that_comes_after_the_deletion_is_removed(
    project: Project, production: Environment, log: Log, settings: Any
) -> None:
    settings.ORPHAN_GRACE_SECONDS = 0
    environment = environment_ref(production.pk)
    services.delete_project(project.pk, actor=audit.SYSTEM)
    recording.queues[REGION].waiting.append(entry_of(environment, datetime.now(UTC)))
    recording.queues[REGION].tallies[production.pk] = recording.Tally(omitted=3)
    assert len(log.written()) == 1
    remove_orphaned_rows()
    assert log.written() == []
    assert not OmittedRequests.objects.using(REGION).exists()


def test_many_entries_of_a_deleted_environment_go_in_batches(
    production: Environment, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_BATCH", 3)
    environment, now = environment_ref(production.pk), datetime.now(UTC)
    assert environment is not None
    other = replace(environment, environment_id="env_other")
    recording.queues[REGION].waiting.extend([entry_of(each, now) for each in (environment, other)] * 8)
    recording.queues[REGION].tallies = {each: recording.Tally(omitted=3) for each in (production.pk, "env_other")}
    assert len(log.written()) == 16
    partitions.forget_environment(environment_id=production.pk, cluster=REGION)
    assert [each.environment_id for each in log.written()] == ["env_other"] * 8
    assert OmittedRequests.objects.using(REGION).get().environment_id == "env_other"


# ── Under pressure ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_reads_beyond_the_rate_are_omitted_and_the_list_says_so(api: Api, key: str, log: Log) -> None:
    for _ in range(recording.READS_PER_SECOND + 5):
        api.get("/v1/schema", token=key)
    api.get("/v1/rows/nothing", token=key)
    recording.queues[REGION].tallies["env_other"] = recording.Tally(omitted=3)
    log.written()
    answer = api.get("/v1/logs?limit=100", token=key).json
    assert [each["status"] for each in answer["data"]].count(200) == recording.READS_PER_SECOND
    assert [each["status"] for each in answer["data"]].count(404) == 1
    assert answer["omitted"] == 5
    assert api.get("/v1/logs?until=2020-01-01T00:00:00Z", token=key).json["omitted"] == 0


def test_5000_requests_a_second_take_little_memory_and_time(production: Environment, log: Log) -> None:
    environment = environment_ref(production.pk)
    caller = Caller("key", "key_1", frozenset(), environment=environment)
    request = RequestFactory().get("/v1/rows/tasks")
    request.__dict__["caller"] = caller
    request.resolver_match = None
    queue = recording.queues[REGION]
    began = time.process_time()
    for number in range(50_000):
        if number % 10 == 0:
            queue.tallies.clear()  # as if the writer had come by, and yet written nothing
        recording.record(request, "GET", 200, 0.001, None)
        recording.record(request, "GET", 500, 0.001, None)
    seconds = time.process_time() - began
    assert len(queue.waiting) == recording.MAX_WAITING
    assert seconds < within(2)
    for number in range(2 * recording.MAX_TALLIES):
        queue.admit(f"env_{number}", is_read=True)
    assert len(queue.tallies) <= recording.MAX_TALLIES


def test_while_the_database_is_away_requests_go_on_and_their_entries_wait(
    api: Api, key: str, production: Environment, log: Log
) -> None:
    def away(*_: Any) -> None:
        raise OperationalError("away")

    api.get("/v1/rows/nothing", token=key)
    with connections[REGION].execute_wrapper(away):
        log.writers[REGION].write()
        log.writers[REGION].write()
    assert api.get("/v1/schema", token=key).status == 200
    assert [each.status for each in log.written() if each.environment_id] == [404, 200]


def test_what_never_fits_is_given_up_and_counted(
    api: Api, key: str, production: Environment, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = environment_ref(production.pk)
    recording.queues[REGION].waiting.append(entry_of(environment, datetime(1999, 1, 1, tzinfo=UTC)))
    recording.queues[REGION].waiting.append(entry_of(environment, datetime.now(UTC)))
    assert log.written() == []
    api.get("/v1/schema", token=key)
    assert [each.route for each in log.written() if each.environment_id] == ["/v1/schema"]
    assert api.get("/v1/logs", token=key).json["omitted"] == 2


# ── Retention ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_partitions_are_created_ahead_and_dropped_after_their_time() -> None:
    partitions.create(REGION)
    names = {*partitions._existing(REGION)}
    partitions.create(REGION)
    assert {*partitions._existing(REGION)} == names
    today = datetime.now(UTC).date()
    for keep_days in (1, 7, 30):
        assert f"request_log_{keep_days}d_{today + timedelta(days=7):%Y%m%d}" in names
    old = [(keep, today - timedelta(days=age)) for keep, age in ((1, 1), (1, 2), (7, 7), (7, 8), (30, 30), (30, 31))]
    for keep_days, day in old:
        if partitions._name(keep_days, day) not in names:
            partitions._create(REGION, keep_days, day)
    partitions.drop_old(REGION)
    left = {*partitions._existing(REGION)}
    assert [partitions._name(*each) in left for each in old] == [True, False] * 3
    for keep_days, day in old[2::2]:
        with connections[REGION].cursor() as cursor:
            cursor.execute(f"DROP TABLE {partitions._name(keep_days, day)}")


def test_a_plan_reads_no_further_back_than_it_keeps(production: Environment, log: Log) -> None:
    environment, now = environment_ref(production.pk), datetime.now(UTC)
    yesterday = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    recording.queues[REGION].waiting.append(entry_of(environment, yesterday, request_id="old"))
    recording.queues[REGION].waiting.append(entry_of(environment, now, request_id="new"))
    assert [each.keep_days for each in log.written()] == [7, 7]
    for plan, expected in (("free", ["new"]), ("pro", ["new", "old"])):
        page = reader.page(replace(environment, plan=plan), {"since": now - timedelta(days=3)}, 20, None)
        assert [each["request_id"] for each in page["data"]] == expected


def test_a_search_by_request_id_uses_an_index(production: Environment, log: Log) -> None:
    partitions.create(REGION)
    environment = environment_ref(production.pk)
    with connections[REGION].cursor() as cursor:
        for first in range(1, 100_000, 10_000):
            cursor.execute(
                "INSERT INTO request_log_entry (at, keep_days, environment_id, request_id, method, route, status,"
                " field_codes, duration_ms, caller_kind, caller_id)"
                " SELECT now() - n * interval '1 millisecond', 1 + 6 * (n %% 2), %s, 'req_' || n, 'GET',"
                " '/v1/rows/{table}', CASE WHEN n %% 1000 = 0 THEN 404 ELSE 200 END, '{}', 1, 'key', 'key_1'"
                " FROM generate_series(%s::int, %s::int) n",
                [production.pk, first, first + 9_999],
            )
        plans: list[tuple[str, str]] = []

        def explained(execute: Any, statement: str, parameters: Any, many: bool, context: Any) -> Any:
            if "FROM request_log_entry" in statement.replace('"', "") and statement.startswith("SELECT"):
                with context["connection"].cursor() as other:
                    other.cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF) {statement}", parameters)
                    plans.append((statement, "\n".join(line for (line,) in other.cursor.fetchall())))
            return execute(statement, parameters, many, context)

        with connections[REGION].execute_wrapper(explained):
            found = reader.page(environment, {"request_id": "req_77777"}, 20, None)
            reader.page(environment, {"status": 404}, 20, None)
            reader.page(environment, {}, 20, None)
            reader.of_requests(REGION, ["req_77777"], 50)
    assert [each["request_id"] for each in found["data"]] == ["req_77777"]
    assert len(plans) == 4
    for statement, plan in plans:
        assert "Seq Scan" not in plan, (statement, plan)
    for _, plan in plans:
        ran = float(plan.rpartition("Execution Time: ")[2].partition(" ms")[0])
        assert ran < 50, plan
