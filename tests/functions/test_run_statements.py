"""The statements of a call: planned once for each connection, and the slots in their order, whatever the statistics."""

from collections import defaultdict

import pytest
from django.db import connections
from psycopg import sql

from functions.models import Run
from functions.quotas.client_networks import AnonymousCall
from functions.runs import completion, start
from functions.runs.start import NewRun, start_run
from functions.runtime.calls import Outcome
from platform_site.identity.callers import EnvironmentRef
from platform_site.identity.plans import PLANS
from tests.rows.conftest import Tracker
from tests.support.function_queue import anonymous_caller, end, gather_statistics, key_of, pile_up, taken
from tests.support.functions import SUM, deploy

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

CALLS = 40


@pytest.fixture
def busy(environment: EnvironmentRef, tracker: Tracker) -> EnvironmentRef:
    """On the team plan, with a history of which PostgreSQL has gathered statistics."""
    deploy(tracker, "sum", SUM, invoke="public")
    team = EnvironmentRef(**{**{name: getattr(environment, name) for name in environment.__slots__}, "plan": "team"})
    pile_up(environment, 3000)
    end(environment.cluster, *Run.objects.using(environment.cluster).values_list("pk", flat=True))
    gather_statistics(environment.cluster)
    return team


def run(environment: EnvironmentRef, network: int | None) -> None:
    if network is None:
        started = start_run(NewRun(environment, key_of(environment), "sum", "{}"))
    else:
        started = start_run(
            NewRun(environment, anonymous_caller(environment), "sum", "{}", anonymous=AnonymousCall(network))
        )
    assert completion.record_end(started, Outcome(0.001, "{}"))


@pytest.mark.parametrize("history", [0, 20_000])
@pytest.mark.parametrize("network", [None, 7])
def test_postgresql_plans_the_statements_of_a_call_once(
    busy: EnvironmentRef, network: int | None, history: int
) -> None:
    """Also with a long history: for it a plan for given values would seem cheaper than one for all."""
    pile_up(busy, history)
    end(busy.cluster, *Run.objects.using(busy.cluster).filter(phase="queued").values_list("pk", flat=True))
    gather_statistics(busy.cluster)
    connections[busy.cluster].close()
    for _ in range(CALLS):
        run(busy, network)
    with connections[busy.cluster].cursor() as cursor:
        cursor.execute(
            "SELECT custom_plans, generic_plans FROM pg_prepared_statements"
            " WHERE statement LIKE '%%INTO platform.functions_run%%' OR statement LIKE '%%UPDATE platform.functions_run%%'"
        )
        counted = cursor.fetchall()
    assert len(counted) == 2
    # PostgreSQL itself tries out five plans for given values before it compares them with one for all.
    assert all(custom <= 5 and generic >= CALLS - 7 for custom, generic in counted), counted


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
def test_a_run_that_ends_is_found_by_its_id(busy: EnvironmentRef, mode: str) -> None:
    """Not in the index of executing runs, which is empty when statistics are gathered: it has an entry for every run
    since the last vacuum, and an old snapshot keeps them all."""
    connections[busy.cluster].close()
    for _ in range(3):
        run(busy, None)
    _, bound = completion._end_batcher.statement.bind(defaultdict(lambda: None, run_id="run_x", attempt=1))
    values = [None if value is None else value.decode() for value in bound]
    with connections[busy.cluster].cursor() as cursor:
        cursor.execute(
            "SELECT name FROM pg_prepared_statements WHERE statement LIKE '%%UPDATE platform.functions_run%%'"
        )
        [(name,)] = cursor.fetchall()
        cursor.execute(f"SET plan_cache_mode = {mode}")
        arguments = sql.SQL(", ").join(map(sql.Literal, values))
        cursor.execute(sql.SQL("EXPLAIN EXECUTE {} ({})").format(sql.SQL(name), arguments))
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Index Cond: ((id)::text = " in plan, plan
    assert "run_lease" not in plan, plan


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
def test_slots_of_anonymous_callers_are_taken_last(busy: EnvironmentRef, mode: str) -> None:
    limit = PLANS["team"].function_concurrency
    with connections[busy.cluster].cursor() as cursor:
        cursor.execute(f"SET plan_cache_mode = {mode}")
    started = [start_run(NewRun(busy, key_of(busy), "sum", "{}")) for _ in range(limit // 2)]
    assert taken(busy) == [*range(limit // 2 + 1, limit + 1)]
    started += [start_run(NewRun(busy, key_of(busy), "sum", "{}")) for _ in range(limit // 2)]
    assert taken(busy) == [*range(1, limit + 1)]
    assert len({each.run_id for each in started}) == limit
    with pytest.raises(start.TooManyRuns):
        start_run(NewRun(busy, key_of(busy), "sum", "{}"))


def test_code_runs_once_if_its_end_cannot_be_written(environment: EnvironmentRef, tracker: Tracker) -> None:
    """A request whose statement PostgreSQL aborts is repeated, but not once a run has begun."""
    deploy(tracker, "sum", SUM)
    with connections[environment.cluster].cursor() as cursor:
        cursor.execute("""
            CREATE FUNCTION platform.aborts() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE 'deadlock' USING ERRCODE = '40P01'; END $$;
            CREATE TRIGGER aborts BEFORE UPDATE ON platform.functions_run
            FOR EACH ROW EXECUTE FUNCTION platform.aborts()""")
    try:
        assert tracker.post("owner", "/functions/sum/invoke", {"input": {"a": 1, "b": 2}}).status == 503
    finally:
        with connections[environment.cluster].cursor() as cursor:
            cursor.execute("DROP TRIGGER aborts ON platform.functions_run; DROP FUNCTION platform.aborts()")
    assert Run.objects.using(environment.cluster).count() == 1
