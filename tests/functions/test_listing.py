"""The list of runs says how each came about, gives those wanted, and reads its page and not the history."""

from itertools import product

import pytest
from django.db import connections

from functions.models import Run
from platform_site.identity import ids
from platform_site.identity.callers import EnvironmentRef
from tests.rows.conftest import Tracker
from tests.support.delivery_queue import forget_statistics
from tests.support.function_queue import gather_statistics, statistics
from tests.support.functions import SUM, deploy, invoke
from tests.support.row_statistics import count_touched_rows

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

PATH = "/functions/sum/runs"
A_PAGE = 20
STATUSES, TRIGGERS = Run.Status.values, Run.Trigger.values
RARE = [("call", "failed"), ("call", "running"), ("inbound", "succeeded"), ("schedule", "failed"), ("event", "running")]


def write_down(
    environment: EnvironmentRef,
    count: int,
    trigger: str,
    status: str,
    *,
    minutes: int = 10,
    caller: tuple[str, str] = ("key", "key_x"),
) -> None:
    """So many runs of `sum`, the last of them so long ago, for a caller of this kind and id."""
    with connections[environment.cluster].cursor() as cursor:
        cursor.execute(
            "INSERT INTO platform.functions_run (id, environment_id, function_id, version, status, phase, is_async,"
            "       trigger, event_id, input, logs, sandbox_layers, caller_kind, caller_id, depth, concurrency, attempts,"
            "       created_at)"
            " SELECT %(prefix)s::text || lpad(n::text, 8, '0'), f.environment_id, f.id, 1, %(status)s::text,"
            "        CASE WHEN %(status)s::text = 'running' THEN 'queued' ELSE 'ended' END, true, %(trigger)s::text,"
            "        CASE WHEN %(trigger)s::text = 'event' THEN 'evt_' || right(%(prefix)s::text, 12) || n END,"
            "        '{}', '[]', '{}', %(caller_kind)s::text, %(caller_id)s::text, 0, 5, 0,"
            "        now() - %(minutes)s * interval '1 minute' - n * interval '1 ms'"
            "   FROM platform.functions_function f, generate_series(1, %(count)s) n"
            "  WHERE f.environment_id = %(environment_id)s AND f.name = 'sum'",
            {
                "prefix": f"run_{ids.new('run')[-18:]}",
                "status": status,
                "trigger": trigger,
                "minutes": minutes,
                "count": count,
                "caller_kind": caller[0],
                "caller_id": caller[1],
                "environment_id": environment.environment_id,
            },
        )


def test_each_listed_run_says_how_it_came_about(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "sum", SUM)
    called = invoke(tracker, "sum", {"a": 1, "b": 2}).json["run_id"]
    for trigger in TRIGGERS:
        write_down(environment, 1, trigger, "succeeded")
    listed = tracker.get("owner", PATH).json["data"]
    assert [*listed[0]] == ["id", "status", "started_at", "duration_ms", "trigger", "event_id"]
    assert (listed[0]["id"], listed[0]["trigger"], listed[0]["event_id"]) == (called, "call", None)
    of_record = {run.pk: run for run in Run.objects.using(environment.cluster)}
    assert len(listed) == 1 + len(TRIGGERS)
    for run in listed:
        kept = of_record[run["id"]]
        assert (run["trigger"], run["event_id"]) == (kept.trigger, kept.event_id)
        detail = tracker.get("owner", f"{PATH}/{run['id']}").json
        assert {name: detail[name] for name in run} == run


def test_status_and_trigger_are_wanted_together(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "sum", SUM)
    for number, (trigger, status) in enumerate(product(TRIGGERS, STATUSES)):
        write_down(environment, 2, trigger, status, minutes=number + 1)
    kept = [
        *Run.objects.using(environment.cluster).order_by("-created_at", "-id").values_list("pk", "trigger", "status")
    ]
    for trigger, status in product([None, *TRIGGERS], [None, *STATUSES]):
        wanted = [
            run_id
            for run_id, its_trigger, its_status in kept
            if trigger in (None, its_trigger) and status in (None, its_status)
        ]
        given = {"trigger": trigger, "status": status}
        query = "&".join(f"{name}={value}" for name, value in given.items() if value)
        got = tracker.get("owner", f"{PATH}?{query}&limit=100" if query else f"{PATH}?limit=100").json["data"]
        assert [run["id"] for run in got] == wanted, query
        assert [
            run["id"] for run in tracker.get("owner", f"{PATH}?{query}&limit=3".replace("?&", "?")).json["data"]
        ] == (wanted[:3])
    assert tracker.get("alice", f"{PATH}?trigger=call").json == {"data": []}, "they are a key's"


@pytest.mark.parametrize("value", ["cron", "", "CALL", "call,event", "call'"])
def test_a_trigger_that_there_is_not_is_refused(tracker: Tracker, value: str) -> None:
    deploy(tracker, "sum", SUM)
    for query in (f"trigger={value}", f"status=failed&trigger={value}"):
        got = tracker.get("owner", f"{PATH}?{query}")
        assert (got.status, got.fields) == (422, {"trigger": "not_among"}), query
        assert "call, schedule, inbound or event" in got.json["error"]["fields"][0]["message"]
    assert tracker.get("owner", f"{PATH}?status={value}").fields == {"status": "not_among"}
    assert tracker.get("owner", f"{PATH}?trigger=call&trigger=event").status == 422


@statistics
def test_a_page_of_few_among_many_reads_its_page(
    tracker: Tracker,
    environment: EnvironmentRef,
    statistics: bool,
) -> None:
    """Whichever are few, by trigger, by status or both; also before PostgreSQL knows of them."""
    deploy(tracker, "sum", SUM)
    gather_statistics(environment.cluster)
    write_down(environment, 100_000, "event", "succeeded")
    for trigger, status in RARE:
        write_down(environment, 3, trigger, status, minutes=60)
    if statistics:
        gather_statistics(environment.cluster)
    for trigger, status in product([None, *TRIGGERS], [None, *STATUSES]):
        query = "&".join(f"{name}={value}" for name, value in (("trigger", trigger), ("status", status)) if value)
        with count_touched_rows(environment.cluster, "platform.functions_run") as cost:
            got = tracker.get("owner", f"{PATH}?{query}" if query else PATH)
        expected = sum(
            3 for way in RARE if trigger in (None, way[0]) and status in (None, way[1])
        ) + (100_000 if trigger in (None, "event") and status in (None, "succeeded") else 0)  # fmt: skip
        assert len(got.json["data"]) == min(expected, A_PAGE), query
        assert cost.read <= A_PAGE * 4, query


@statistics
def test_a_user_with_few_runs_among_those_of_many_reads_them_alone(
    tracker: Tracker, environment: EnvironmentRef, statistics: bool
) -> None:
    """So no app user makes PostgreSQL read a busy function's history with each request."""
    deploy(tracker, "sum", SUM)
    own = [invoke(tracker, "sum", {"a": 1, "b": 2}, who="alice").json["run_id"] for _ in range(3)]
    forget_statistics(environment.cluster, "functions_run")
    for status in ("succeeded", "failed"):
        for number in range(20):
            write_down(environment, 1_000, "call", status, caller=("user", f"usr_{number}"))
    if statistics:
        gather_statistics(environment.cluster)
    for trigger, status in product([None, *TRIGGERS], [None, *STATUSES]):
        query = "&".join(f"{name}={value}" for name, value in (("trigger", trigger), ("status", status)) if value)
        for who, runs in (("alice", own[::-1]), ("bob", [])):
            with count_touched_rows(environment.cluster, "platform.functions_run") as cost:
                got = tracker.get(who, f"{PATH}?{query}")
            is_theirs = trigger in (None, "call") and status in (None, "succeeded")
            assert [run["id"] for run in got.json["data"]] == (runs if is_theirs else []), (who, query)
            assert cost.read <= A_PAGE * 4, (who, query)
