"""History of calls with a publishable key: small and bounded, so that anonymous callers cannot fill the disk."""

from copy import deepcopy
from typing import Any

import pytest
from django.db import connections

from functions.models import Run
from functions.runs import completion, leases
from functions.runs import retention as run_retention
from functions.runs.start import NewRun, start_run
from functions.runs.storage import MAX_STORED_BYTES
from functions.runtime.calls import Outcome
from functions.triggers import events as event_triggers
from functions.worker import Worker
from platform_site.identity.callers import EnvironmentRef
from platform_site.identity.plans import PLANS
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.function_events import put as put_on
from tests.support.function_events import relay, run_events
from tests.support.function_queue import (
    anonymous_caller,
    claimed,
    gather_statistics,
    key_of,
    open_to_all,  # noqa: F401 - a fixture
    pile_up,
    queue,
    queued,
    record_past_runs,
    statistics,
)
from tests.support.functions import deploy, invoke
from tests.support.row_statistics import count_touched_rows
from tests.support.tracker import DOCUMENT

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

LARGE = "x" * (MAX_STORED_BYTES + 1)
ECHO = "export default (input) => { for (const line of input.lines ?? []) console.log(line); return input.text }"
MOST = PLANS["free"].visitor_queued_bytes


@pytest.fixture
def echoing(open_to_all: Tracker) -> Tracker:  # noqa: F811
    deploy(open_to_all, "echo", ECHO, invoke="public")
    return open_to_all


def echo(tracker: Tracker, who: str, input: Any, **how: Any) -> Answer:
    answer = invoke(tracker, "echo", input, who=who, **how)
    assert answer.status in (200, 202), answer.json
    return answer


def shown(tracker: Tracker, answer: Answer) -> Any:
    return tracker.get("owner", f"/functions/echo/runs/{answer.json['run_id']}").json


def stored(environment: EnvironmentRef, answer: Answer) -> Run:
    return Run.objects.using(environment.cluster).get(pk=answer.json["run_id"])


def size(run: Run) -> int:
    return len(run.input) + len(run.output or "") + sum(len(line["text"]) for line in run.logs)


# ── What is too large ──


@pytest.mark.exhaustive
def test_large_data_of_anonymous_runs_is_omitted_and_marked(echoing: Tracker, environment: EnvironmentRef) -> None:
    lines = ["y" * 4000] * 20
    answer = echo(echoing, "visitor", {"text": LARGE, "lines": lines})
    assert answer.json["output"] == LARGE, "the caller has all of it"
    assert "not_stored" not in answer.json
    run = stored(environment, answer)
    assert (run.status, run.input, run.output) == ("succeeded", "", None)
    assert size(run) <= MAX_STORED_BYTES
    detail = shown(echoing, answer)
    assert detail["not_stored"] == ["input", "output", "logs"]
    assert detail["output"] is None
    assert [line["text"] for line in detail["logs"]] == lines[:4]


@pytest.mark.exhaustive
def test_small_data_and_all_data_of_other_callers_are_stored(echoing: Tracker, environment: EnvironmentRef) -> None:
    small = echo(echoing, "visitor", {"text": "hello", "lines": ["a", "b"]})
    detail = shown(echoing, small)
    assert (detail["not_stored"], detail["output"], len(detail["logs"])) == ([], "hello", 2)
    assert stored(environment, small).input == '{"text":"hello","lines":["a","b"]}'
    for who in ("server", "alice", "owner"):
        answer = echo(echoing, who, {"text": LARGE, "lines": ["y" * 4000] * 20})
        detail = shown(echoing, answer)
        assert (detail["not_stored"], detail["output"], len(detail["logs"])) == ([], LARGE, 20)
        assert LARGE in stored(environment, answer).input


def test_while_it_executes_no_large_input_lies_on_the_disk(open_to_all: Tracker, environment: EnvironmentRef) -> None:  # noqa: F811
    """Nor does one that its process died with."""
    started = start_run(NewRun(environment, anonymous_caller(environment), "sum", f'{{"a":"{LARGE}"}}'))
    run = Run.objects.using(environment.cluster).get(pk=started.run_id)
    assert (run.input, run.not_stored) == ("", ["input"])
    assert LARGE in started.input_text
    Run.objects.using(environment.cluster).update(claimed_until="2020-01-01T00:00:00Z")
    leases.settle_lost(environment.cluster)
    run.refresh_from_db()
    assert (run.status, run.input, run.not_stored) == ("failed", "", ["input"])


def test_a_run_that_a_crash_of_postgresql_forgot_is_written_down_as_small(
    open_to_all: Tracker,  # noqa: F811
    environment: EnvironmentRef,
) -> None:
    started = start_run(NewRun(environment, anonymous_caller(environment), "sum", f'{{"a":"{LARGE}"}}'))
    Run.objects.using(environment.cluster).all().delete()
    assert completion.record_end(started, Outcome(0.001, f'"{LARGE}"'))
    run = Run.objects.using(environment.cluster).get()
    assert (run.pk, run.input, run.output, run.not_stored) == (started.run_id, "", None, ["input", "output"])


@pytest.mark.exhaustive
def test_a_queued_one_has_its_input_until_it_has_ended(echoing: Tracker, environment: EnvironmentRef) -> None:
    answer = echo(echoing, "visitor", {"text": LARGE}, headers={"Prefer": "respond-async"})
    assert answer.status == 202
    assert LARGE in stored(environment, answer).input
    assert shown(echoing, answer)["not_stored"] == []
    assert Worker(environment.cluster).run() == 1
    run = stored(environment, answer)
    assert (run.status, run.input, run.output) == ("succeeded", "", None)
    assert shown(echoing, answer)["not_stored"] == ["input", "output"]


@pytest.mark.exhaustive
def test_a_queued_one_that_never_comes_to_its_turn_leaves_no_input(
    echoing: Tracker, environment: EnvironmentRef
) -> None:
    using = environment.cluster
    cancelled, lost = (echo(echoing, "visitor", {"text": LARGE}, headers={"Prefer": "respond-async"}) for _ in range(2))
    kept = echo(echoing, "server", {"text": LARGE}, headers={"Prefer": "respond-async"})
    for answer in (cancelled, kept):
        assert echoing.post("owner", f"/functions/echo/runs/{answer.json['run_id']}/cancel", {}).status == 200
    Run.objects.using(using).filter(pk=lost.json["run_id"]).update(
        phase="executing", attempts=leases.LOST_ATTEMPTS, started_at="2020-01-01T00:00:00Z",
        claimed_until="2020-01-01T00:00:00Z",
    )  # fmt: skip
    assert leases.settle_lost(using)[1] == 1
    for answer in (cancelled, lost):
        run = stored(environment, answer)
        assert (run.status, run.input, run.not_stored) == ("failed", "", ["input"])
    assert (stored(environment, kept).status, stored(environment, kept).not_stored) == ("failed", None)
    assert LARGE in stored(environment, kept).input


def long_names(tracker: Tracker) -> None:
    document = deepcopy(DOCUMENT)
    document["tables"]["lists"]["columns"]["name"]["max_length"] = 2 * MAX_STORED_BYTES
    tracker.apply(document)


@pytest.mark.exhaustive
def test_event_run_stores_no_large_input_but_all_logs(
    tracker: Tracker,
    environment: EnvironmentRef,
) -> None:
    """Rows inserted by anonymous callers reach each function that runs on them."""
    long_names(tracker)
    says = (
        "export default ({data}) => { for (let i = 0; i < 9; i++) console.log('y'.repeat(4000)); return data.record }"
    )
    put_on(tracker, "owner", "says", says, on=["*"])
    put_on(tracker, "owner", "throws", "export default () => { throw new Error('no') }", on=["lists.*"], attempts=2)
    for name in (LARGE, "small"):
        row = {"name": name, "owner_id": tracker.users["alice"]}
        assert tracker.post("key", "/rows/lists", row).status == 201
    made = run_events(environment)
    again = [run for run in made if run.phase == "queued"]
    assert [LARGE in run.input for run in again] == [True, False], "there is another attempt"
    Run.objects.using(environment.cluster).filter(phase="queued").update(claimed_until=None)
    assert Worker(environment.cluster).run() == 2
    for run in again:
        run.refresh_from_db()
    assert [(run.status, run.attempts, run.input == "") for run in again] == [("failed", 2, True), ("failed", 2, False)]
    large, small = (run for run in made if run.status == "succeeded")
    assert (large.input, large.not_stored, small.not_stored) == ("", ["input"], None)
    assert LARGE in large.output
    assert len(large.logs) == 9
    assert "small" in small.input
    detail = tracker.get("owner", f"/functions/says/runs/{large.pk}").json
    assert (detail["not_stored"], detail["event_id"], len(detail["logs"])) == (["input"], large.event_id, 9)


@pytest.mark.parametrize("how", ["cancelled", "lost"])
def test_a_run_on_an_event_that_never_comes_to_its_turn_leaves_no_input(
    tracker: Tracker, environment: EnvironmentRef, how: str
) -> None:
    using = environment.cluster
    long_names(tracker)
    put_on(tracker, "owner", "says", "export default () => 1", on=["lists.insert"])
    assert tracker.post("key", "/rows/lists", {"name": LARGE, "owner_id": tracker.users["alice"]}).status == 201
    relay(using)
    assert event_triggers.queue(using) == 1
    waiting = Run.objects.using(using).get(trigger="event")
    assert (LARGE in waiting.input, waiting.not_stored) == (True, None), "it needs it"
    if how == "cancelled":
        assert tracker.post("owner", f"/functions/says/runs/{waiting.pk}/cancel", {}).status == 200
    else:
        Run.objects.using(using).filter(pk=waiting.pk).update(
            phase="executing", attempts=leases.LOST_ATTEMPTS, started_at="2020-01-01T00:00:00Z",
            claimed_until="2020-01-01T00:00:00Z",
        )  # fmt: skip
        assert leases.settle_lost(using)[1] == 1
    waiting.refresh_from_db()
    assert (waiting.status, waiting.input, waiting.not_stored) == ("failed", "", ["input"])


@pytest.mark.exhaustive
def test_a_repetition_is_told_that_the_output_is_not_there_any_more(
    echoing: Tracker, environment: EnvironmentRef
) -> None:
    for text, expected in (("hello", "hello"), (LARGE, None)):
        once = {"Idempotency-Key": f"of {len(text)}"}
        first = echo(echoing, "visitor", {"text": text}, headers=once)
        assert first.json["output"] == text
        again = echo(echoing, "visitor", {"text": text}, headers=once)
        assert again.headers["Idempotency-Replayed"] == "true"
        assert (again.json["run_id"], again.json["status"]) == (first.json["run_id"], "succeeded")
        assert again.json.get("output") == expected
        assert again.json.get("not_stored") == (None if expected else ["output"])
    assert Run.objects.using(environment.cluster).count() == 2


@pytest.mark.exhaustive
def test_no_run_of_others_is_written_again_for_its_end(echoing: Tracker, environment: EnvironmentRef) -> None:
    """What a large input was stored as stays where it is: its end moves a pointer."""

    def kept_at() -> Any:
        with connections[environment.cluster].cursor() as cursor:
            cursor.execute("SELECT pg_column_toast_chunk_id(input) FROM platform.functions_run")
            return cursor.fetchone()[0]

    started = start_run(
        NewRun(environment, key_of(environment), "echo", '{"a":"' + "".join(map(chr, range(256, 50_000))) + '"}')
    )
    before = kept_at()
    assert before is not None
    completion.record_end(started, Outcome(0.001, "1"))
    assert kept_at() == before


# ── How much waits ──


def test_the_inputs_that_wait_have_a_bound_of_their_own(
    open_to_all: Tracker,  # noqa: F811
    environment: EnvironmentRef,
) -> None:
    pile_up(environment, 10)
    waiting = Run.objects.using(environment.cluster).filter(phase="queued")
    waiting.update(input="x" * (MOST // 10 - 100))
    pile_up(environment, 1, "key")
    assert invoke(open_to_all, "sum", {"a": LARGE}, who="server", headers={"Prefer": "respond-async"}).status == 202
    [small] = queued(open_to_all, "visitor", 1)
    refused = invoke(open_to_all, "sum", {"a": LARGE}, who="visitor", headers={"Prefer": "respond-async"})
    assert (refused.status, refused.error, refused.headers["Retry-After"]) == (429, "rate_limited", "10")
    assert f"{MOST:,}" in refused.json["error"]["message"]
    assert waiting.count() == 13, "what is refused is no run"
    used = open_to_all.get("owner", "/limits").json["limits"]["visitor_queued_bytes"]
    assert used == {"limit": MOST, "used": 10 * (MOST // 10 - 100) + len('{"a":1,"b":1}')}
    assert queue(open_to_all, "visitor").status == 429, "one of its network waits, and more than half of the bytes do"
    assert queue(open_to_all, "visitor", remote_addr="203.0.113.9").status == 202
    assert (begun := claimed(environment.cluster)) is not None
    assert begun.run_id != small


# ── How many are kept ──


def test_newest_anonymous_runs_and_all_others_are_kept(
    open_to_all: Tracker,  # noqa: F811
    environment: EnvironmentRef,
    make_tracker: Any,
) -> None:
    using = environment.cluster
    kept = Run.objects.using(using)
    pile_up(environment, 30)
    pile_up(environment, 30, "key")
    kept.update(phase="ended", status="failed", ended_at="2020-01-01T00:00:00Z")
    waiting = queued(open_to_all, "visitor", 2)
    visits = kept.filter(caller_kind="anonymous")
    newest = list(visits.order_by("-pk").values_list("pk", flat=True)[:12])
    assert set(waiting) <= set(newest)
    assert run_retention.purge_anonymous_runs(using, keep=12) == 20
    assert sorted(visits.values_list("pk", flat=True)) == sorted(newest)
    assert kept.filter(caller_kind="key").count() == 30
    assert run_retention.purge_anonymous_runs(using, keep=12) == 0
    assert run_retention.purge_anonymous_runs(using, keep=0) == 10, "what waits stays"
    assert sorted(visits.values_list("pk", flat=True)) == sorted(waiting)


@statistics
def test_looking_for_them_leaps_over_what_is_not_theirs(
    open_to_all: Tracker,  # noqa: F811
    environment: EnvironmentRef,
    statistics: bool,
) -> None:
    """Also with statistics from a time when all runs were anonymous."""
    record_past_runs(environment)
    pile_up(environment, 5_000, "key")
    if statistics:
        gather_statistics(environment.cluster)
    with count_touched_rows(environment.cluster, "platform.functions_run") as cost:
        assert run_retention.purge_anonymous_runs(environment.cluster) == 0
    assert cost.read <= 1_050, "theirs"
