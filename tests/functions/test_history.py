"""How much of the disk a history takes: weighed run by run, and shortened where the plan allows no more."""

from itertools import count
from typing import Any

import pytest
from django.db import OperationalError, connections
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as some

from functions.models import Function, Run
from functions.runs import completion, leases
from functions.runs import retention as run_retention
from functions.runs.start import NewRun, start_run
from functions.runs.storage import ROW_SIZE, SAMPLE_UNIT, sampled_size
from platform_site.http.fields import timestamp
from platform_site.identity import ids
from platform_site.identity.callers import EnvironmentRef
from platform_site.identity.plans import PLANS
from projects.directory.environments import environment_ref
from tests.projects.conftest import key_for, publishable_key_for
from tests.rows.conftest import Tracker
from tests.support.function_queue import gather_statistics, key_of, record_past_runs, statistics
from tests.support.functions import SUM, deploy, invoke
from tests.support.row_statistics import count_touched_rows
from tests.support.tracker import DOCUMENT
from tests.support.unavailable import terminate_connection

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

BUDGET = PLANS["free"].run_history_bytes
FIRST = 'export default ({text}, ctx) => { console.log("x".repeat(4000)); return text.slice(0, 240_000) }'
LARGE = "x" * 900_000


@pytest.fixture
def busy(tracker: Tracker) -> Tracker:
    tracker.tokens["server"] = key_for(tracker.environment_id, "functions:invoke")
    tracker.tokens["visitor"] = publishable_key_for(tracker.environment_id)
    deploy(tracker, "sum", SUM)
    deploy(tracker, "other", SUM)
    deploy(tracker, "first", FIRST, invoke="public")
    return tracker


_piles = count(1)


def kept(environment: EnvironmentRef, name: str) -> list[Run]:
    found = Run.objects.using(environment.cluster).filter(
        function__name=name, environment_id=environment.environment_id
    )
    return list(found.order_by("created_at", "id"))


def pile_up(environment: EnvironmentRef, name: str, many: int, weight: int | None, *, phase: str = "ended") -> None:
    """So many runs that have ended, the oldest an hour ago, each of which stands for so many bytes."""
    with connections[environment.cluster].cursor() as cursor:
        cursor.execute(
            "INSERT INTO platform.functions_run (id, environment_id, function_id, version, status, phase, is_async,"
            "       input, logs, sandbox_layers, caller_kind, caller_id, depth, concurrency, attempts, weight, created_at)"
            " SELECT %s || lpad(n::text, 8, '0'), f.environment_id, f.id, 1, 'running', %s, true,"
            "        '{}', '[]', '{}', 'key', 'key_x', 0, 1, 0, %s, now() - interval '1 hour' + n * interval '1 ms'"
            "   FROM platform.functions_function f, generate_series(1, %s) n"
            "  WHERE f.environment_id = %s AND f.name = %s",
            [f"{ids.new('run')[:16]}{next(_piles):06}", phase, weight, many, environment.environment_id, name],
        )


# ── Weighed ──


def test_a_large_run_stands_for_what_it_has(busy: Tracker, environment: EnvironmentRef) -> None:
    for who in ("server", "alice"):
        assert invoke(busy, "first", {"text": LARGE}, who=who).status == 200
    for run in kept(environment, "first"):
        assert run.weight is not None
        told = ROW_SIZE + len(run.input.encode()) + len((run.output or "").encode()) + 4000
        assert SAMPLE_UNIT < told < run.weight < told + 500, "and its log"


def test_a_run_that_ends_without_an_outcome_is_weighed_too(busy: Tracker, environment: EnvironmentRef) -> None:
    using = environment.cluster
    cancelled, lost = (
        start_run(NewRun(environment, key_of(environment), "sum", "{}", is_async=True)).run_id for _ in range(2)
    )
    found = Run.objects.using(using)
    found.filter(pk__in=(cancelled, lost)).update(input="x" * (2 * SAMPLE_UNIT))
    completion.request_cancel(using, cancelled)
    gone_by = "2020-01-01T00:00:00Z"
    found.filter(pk=lost).update(
        phase="executing", attempts=leases.LOST_ATTEMPTS, claimed_until=gone_by, started_at=gone_by
    )
    assert leases.settle_lost(using)[1] == 1
    assert [run.weight for run in kept(environment, "sum")] == [ROW_SIZE + 2 * SAMPLE_UNIT] * 2


def test_one_that_has_not_ended_is_not(busy: Tracker, environment: EnvironmentRef) -> None:
    begun = start_run(NewRun(environment, key_of(environment), "sum", "{}"))
    Run.objects.using(environment.cluster).filter(pk=begun.run_id).update(input="x" * (2 * SAMPLE_UNIT))
    completion.request_cancel(environment.cluster, begun.run_id)
    [run] = kept(environment, "sum")
    assert (run.phase, run.weight) == ("executing", None)


def test_of_small_ones_so_many_are_weighed_that_the_sum_is_right(environment: EnvironmentRef) -> None:
    many, size = 1_000_000, 2_000
    with connections[environment.cluster].cursor() as cursor:
        cursor.execute(
            f"SELECT count(weight), sum(weight), count(theirs) FROM (SELECT {sampled_size(str(size), kind('key'))} AS weight,"
            f" {sampled_size(str(2 * SAMPLE_UNIT), kind('anonymous'))} AS theirs FROM generate_series(1, {many})) sample"
        )
        weighed_ones, total, theirs = cursor.fetchone()
    right = many * (ROW_SIZE + size)
    assert abs(total - right) < 0.12 * right, "six times the deviation"
    assert weighed_ones == total // SAMPLE_UNIT, "an entry for each SAMPLE_UNIT"
    assert theirs == 0, "anonymous runs have other limits"


def kind(name: str) -> str:
    return f"'{name}'::text"


@given(some.lists(some.integers(1, 1000), min_size=1, max_size=8), some.integers(1, 4000))
def test_each_keeps_as_much_as_makes_the_budget_together(weights: list[int], budget: int) -> None:
    most = run_retention.common_limit(weights, budget)
    left = sum(min(each, most) for each in weights)
    assert left <= budget
    assert left == sum(weights) or left > budget - len(weights), "and no less"


# ── Shortened ──


def test_a_storm_pushes_out_its_own_history_and_no_others(
    busy: Tracker,
    environment: EnvironmentRef,
    make_tracker: Any,
) -> None:
    other: Tracker = make_tracker(DOCUMENT, name="Other")
    deploy(other, "sum", SUM)
    neighbour = environment_ref(other.environment_id)
    assert neighbour is not None
    share = BUDGET // 32
    pile_up(environment, "other", 8, share)
    pile_up(neighbour, "sum", 32, share)
    pile_up(environment, "sum", 20, None)  # small ones that stand for nothing, in between
    pile_up(environment, "sum", 3, None, phase="queued")
    pile_up(environment, "sum", 40, share)
    weighed_ones = [run.pk for run in kept(environment, "sum") if run.weight]
    assert run_retention.shorten_histories(environment.cluster) > 0
    left = kept(environment, "sum")
    assert [run.pk for run in left if run.weight] == weighed_ones[-24:]
    assert len([run for run in left if run.phase == "queued"]) == 3, "what waits stays"
    assert len(kept(environment, "other")) == 8
    assert len(kept(neighbour, "sum")) == 32
    assert run_retention.shorten_histories(environment.cluster) == 0
    shown = {name: busy.get("owner", f"/functions/{name}").json["runs_since"] for name in ("sum", "other", "first")}
    since = (
        Function.objects.using(environment.cluster)
        .get(name="sum", environment_id=environment.environment_id)
        .runs_since
    )
    assert since is not None
    assert shown == {"sum": timestamp(since), "other": None, "first": None}
    assert max(run.created_at for run in left if run.phase == "queued") <= since
    assert min(run.created_at for run in left if run.weight) > since


def test_what_was_cut_off_after_its_batches_is_said_all_the_same(
    busy: Tracker, environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_retention, "BATCH", 4)
    pile_up(environment, "sum", 24, BUDGET // 16)
    deletions: list[str] = []

    def cut_at_the_third(execute: Any, sql: str, *further: Any) -> Any:
        if "DELETE" in sql:
            deletions.append(sql)
            if len(deletions) == 3:
                terminate_connection(connections[environment.cluster])
        return execute(sql, *further)

    with connections[environment.cluster].execute_wrapper(cut_at_the_third), pytest.raises(OperationalError):
        run_retention.shorten_histories(environment.cluster)
    connections[environment.cluster].close()
    assert len(kept(environment, "sum")) == 16
    assert run_retention.shorten_histories(environment.cluster) == 0
    assert busy.get("owner", "/functions/sum").json["runs_since"] is not None


def test_what_is_long_ago_is_not_said_any_more(busy: Tracker, environment: EnvironmentRef) -> None:
    found = Function.objects.using(environment.cluster).filter(name="sum", environment_id=environment.environment_id)
    found.update(runs_since=timezone.now() - run_retention.RETENTION)
    assert busy.get("owner", "/functions/sum").json["runs_since"] is None


def test_the_largest_plan_shortens_later(busy: Tracker, environment: EnvironmentRef) -> None:
    pile_up(environment, "sum", 20, BUDGET // 8)
    busy.project.plan = "pro"
    busy.project.save()
    assert run_retention.shorten_histories(environment.cluster) == 0
    assert len(kept(environment, "sum")) == 20


@statistics
def test_a_look_reads_the_sample_and_what_goes(busy: Tracker, environment: EnvironmentRef, statistics: bool) -> None:
    record_past_runs(environment)
    pile_up(environment, "sum", 5_000, None)
    pile_up(environment, "other", 30, BUDGET // 60)
    if statistics:
        gather_statistics(environment.cluster)
    with count_touched_rows(environment.cluster, "platform.functions_run") as cost:
        assert run_retention.shorten_histories(environment.cluster) == 0
    assert cost.read <= 35
    pile_up(environment, "first", 90, BUDGET // 60)
    with count_touched_rows(environment.cluster, "platform.functions_run") as cost:
        gone = run_retention.shorten_histories(environment.cluster)
    assert gone in (60, 61)
    assert cost.read <= 400
    assert len(kept(environment, "sum")) == 6_000
