"""The limits of queues: runs of keys, of inbound endpoints and of app users have a budget each.

Through the API; what waits already is put there by SQL, longer ago than any run that a test makes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

import pytest
from django.db import connections
from django.db.models import Value
from django.db.models.functions import Concat, Right

from functions.errors import TooManyQueued
from functions.models import Run
from functions.quotas import queue_quotas
from functions.runs.start import NewRun, start_run
from platform_site.identity import ids
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import PLANS
from projects.directory.environments import environment_ref
from tests.projects.conftest import RoundTrips, key_for, publishable_key_for, trips  # noqa: F401 - a fixture
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.function_queue import gather_statistics, key_of, queue, record_past_runs, statistics
from tests.support.functions import SUM, deploy, invoke
from tests.support.inbound import create_endpoint, listed, send
from tests.support.row_statistics import count_touched_rows
from tests.support.service import wait_for
from tests.support.tracker import DOCUMENT

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

FREE = PLANS["free"]
MOST = FREE.queued_runs
SHARE = MOST // queue_quotas.OWNER_SHARE
STEP = SHARE // queue_quotas.COUNT_STEPS
"""What a user queues at first without a look."""


@pytest.fixture
def busy(tracker: Tracker) -> Tracker:
    """`sum` is deployed; `server` has a server key, `visitor` a publishable one."""
    tracker.tokens["server"] = key_for(tracker.environment_id, "functions:invoke")
    tracker.tokens["visitor"] = publishable_key_for(tracker.environment_id)
    assert deploy(tracker, "sum", SUM, invoke="public").status == 201
    return tracker


def pile_up(
    environment: EnvironmentRef,
    count: int,
    kind: str,
    caller_id: str,
    *,
    trigger: str = "call",
    size: int = 2,
    address_id: str | None = None,
) -> None:
    """So many queued runs of `sum` with an input of so many bytes."""
    with connections[environment.cluster].cursor() as cursor:
        cursor.execute(
            "INSERT INTO platform.functions_run (id, environment_id, function_id, version, status, phase, is_async,"
            "       trigger, address_id, input, logs, sandbox_layers, caller_kind, caller_id, depth, concurrency, attempts, created_at)"
            " SELECT %s || lpad(n::text, 8, '0'), f.environment_id, f.id, 1, 'running', 'queued', true, %s,"
            "        %s, repeat('x', %s), '[]', '{}', %s, %s, 0, 1, 0, now() - interval '1 hour' + n * interval '1 ms'"
            "   FROM platform.functions_function f, generate_series(1, %s) n"
            "  WHERE f.environment_id = %s AND f.name = 'sum'",
            [
                ids.new("run")[:14] + token_hex(4),
                trigger,
                address_id,
                size,
                kind,
                caller_id,
                count,
                environment.environment_id,
            ],
        )


def user_id(tracker: Tracker, who: str) -> str:
    run_id = queue(tracker, who).json["run_id"]
    found = Run.objects.using(tracker.project.cluster).get(pk=run_id)
    found.delete()
    return found.caller_id


def statuses(tracker: Tracker, who: str, count: int) -> list[int]:
    return [queue(tracker, who).status for _ in range(count)]


def as_another_process() -> None:
    """One that knows nothing yet."""
    queue_quotas._counts.clear()


@contextmanager
def looks_counted(trips: RoundTrips) -> Iterator[list[str]]:  # noqa: F811
    """The statements that read what waits; the list is filled in at the end."""
    found: list[str] = []
    trips.reset()
    yield found
    found += [each for each in trips.statements if "octet_length(input)" in each]


def waiting(environment: EnvironmentRef) -> int:
    return Run.objects.using(environment.cluster).filter(phase="queued").count()


def refused(answer: Answer, words: str) -> None:
    assert (answer.status, answer.error, answer.headers["Retry-After"]) == (429, "rate_limited", "10")
    assert words in answer.json["error"]["message"]
    assert not {name for name in answer.headers if name.lower().startswith("x-run")}


def test_flooded_endpoint_uses_only_the_budget_of_endpoints(busy: Tracker, environment: EnvironmentRef) -> None:
    path = create_endpoint(busy, "sum")
    pile_up(environment, MOST - 1, "account", "usr_x", trigger="inbound")
    assert send(busy, path).status == 202
    refused(send(busy, path), f"{MOST:,} queued runs by inbound endpoints. That many are waiting.")
    refused(send(busy, path), "That many are waiting.")
    assert waiting(environment) == MOST
    for who in ("server", "alice", "owner", "visitor"):
        assert queue(busy, who).status == 202, who
    assert invoke(busy, "sum", {"a": 1, "b": 1}, who="alice").status == 200
    shown = busy.get("owner", "/limits").json["limits"]["queued_runs"]
    assert shown == {"limit": MOST, "used": MOST}


def test_of_the_endpoints_one_takes_half_and_each_of_the_others_an_eighth(
    busy: Tracker, environment: EnvironmentRef
) -> None:
    leaked, other, third = (create_endpoint(busy, "sum", label=label) for label in ("leaked", "other", "third"))
    ids_of = {each["label"]: each["id"] for each in listed(busy, "sum")}
    pile_up(environment, MOST // 2, "account", "usr_x", trigger="inbound", address_id=ids_of["leaked"])
    told = f"{MOST:,} queued runs by inbound endpoints. This endpoint uses an eighth of that"
    refused(send(busy, leaked), told)
    pile_up(environment, SHARE - 1, "account", "usr_x", trigger="inbound", address_id=ids_of["other"])
    as_another_process()
    assert send(busy, other).status == 202
    refused(send(busy, other), told)
    assert [send(busy, third).status for _ in range(STEP + 5)] == [202] * (STEP + 5)
    refused(send(busy, leaked), told)
    assert waiting(environment) == MOST // 2 + SHARE + STEP + 5
    for who in ("server", "alice", "visitor"):
        assert queue(busy, who).status == 202, who
    queued = Run.objects.using(environment.cluster).filter(trigger="inbound").order_by("-created_at")
    assert set(queued.values_list("address_id", flat=True)) == set(ids_of.values())
    assert queued.filter(address_id=ids_of["other"]).count() == SHARE


def test_an_endpoint_alone_has_half_whatever_comes_at_once(busy: Tracker, environment: EnvironmentRef) -> None:
    path = create_endpoint(busy, "sum")
    [only] = listed(busy, "sum")
    pile_up(environment, MOST // 2 - 1, "account", "usr_x", trigger="inbound", address_id=only["id"])
    assert send(busy, path).status == 202
    refused(send(busy, path), "more only while half of it is free")
    assert waiting(environment) == MOST // 2


def test_the_bytes_of_endpoints_are_shared_likewise(busy: Tracker, environment: EnvironmentRef) -> None:
    leaked, other = (create_endpoint(busy, "sum", label=label) for label in ("leaked", "other"))
    ids_of = {each["label"]: each["id"] for each in listed(busy, "sum")}
    large = FREE.queued_bytes // 64
    pile_up(environment, 32, "account", "usr_x", trigger="inbound", size=large, address_id=ids_of["leaked"])
    told = f"{FREE.queued_bytes:,} bytes of input in queued runs by inbound endpoints. This endpoint uses an eighth"
    refused(send(busy, leaked), told)
    pile_up(environment, 7, "account", "usr_x", trigger="inbound", size=large, address_id=ids_of["other"])
    as_another_process()
    assert send(busy, other, b"x" * 900_000).status == 202
    refused(send(busy, other, b"x" * 900_000), told)
    assert waiting(environment) == 40


def test_keys_and_members_have_a_budget_too(busy: Tracker, environment: EnvironmentRef) -> None:
    path = create_endpoint(busy, "sum")
    pile_up(environment, MOST, "key", "key_x")
    for who in ("server", "owner"):
        refused(queue(busy, who), f"{MOST:,} queued runs of keys and members. That many are waiting.")
    assert queue(busy, "alice").status == 202
    assert send(busy, path).status == 202
    assert invoke(busy, "sum", {"a": 1, "b": 1}, who="server").status == 200, "one that does not wait"
    assert waiting(environment) == MOST + 2


def test_one_user_takes_an_eighth_and_the_others_queue_on(busy: Tracker, environment: EnvironmentRef) -> None:
    alice = user_id(busy, "alice")
    pile_up(environment, SHARE, "user", alice)
    tried = statuses(busy, "alice", STEP + 2)
    assert tried == [202] * STEP + [429] * 2, "what was released before, and no more"
    refused(queue(busy, "alice"), "less than an eighth is yours")
    assert statuses(busy, "bob", STEP + 20) == [202] * (STEP + 20)
    assert queue(busy, "server").status == 202


def test_callers_with_queued_runs_leave_half_to_the_others(busy: Tracker, environment: EnvironmentRef) -> None:
    pile_up(environment, MOST // 2, "user", "usr_x")
    tried = statuses(busy, "alice", STEP + 3)
    assert tried[0] == 202
    assert tried[-2:] == [429, 429]
    assert queue(busy, "bob").status == 202
    pile_up(environment, MOST // 2, "user", "usr_y")
    as_another_process()
    refused(queue(busy, "bob"), "That many are waiting.")


def test_large_inputs_are_counted_by_their_bytes(busy: Tracker, environment: EnvironmentRef) -> None:
    path = create_endpoint(busy, "sum")
    large = FREE.queued_bytes // 64
    pile_up(environment, 63, "key", "key_x", trigger="inbound", size=large)
    before = waiting(environment)
    assert send(busy, path, b"x" * 500_000).status == 202
    assert send(busy, path, b"x" * 500_000).status == 202
    refused(send(busy, path, b"x" * 500_000), f"{FREE.queued_bytes:,} bytes of input in queued runs by inbound")
    assert send(busy, path, b"{}").status == 202, "there is space for a small one"
    assert waiting(environment) == before + 3
    assert queue(busy, "alice").status == 202
    used = busy.get("owner", "/limits").json["limits"]["queued_bytes"]["used"]
    assert 63 * large + 1_000_000 < used <= FREE.queued_bytes


def test_it_is_found_out_when_there_is_room_again(busy: Tracker, environment: EnvironmentRef) -> None:
    pile_up(environment, MOST, "key", "key_x")
    refused(queue(busy, "server"), "That many are waiting.")
    Run.objects.using(environment.cluster).filter(phase="queued").update(phase="ended", status="failed")
    refused(queue(busy, "server"), "That many are waiting.")
    wait_for("another look", lambda: queue(busy, "server").status == 202)


def test_backlog_of_one_environment_delays_no_other(
    busy: Tracker, environment: EnvironmentRef, make_tracker: Any
) -> None:
    pile_up(environment, MOST, "key", "key_x")
    refused(queue(busy, "server"), "That many are waiting.")
    other: Tracker = make_tracker(DOCUMENT, name="Other")
    deploy(other, "sum", SUM)
    assert queue(other, "owner").status == 202


# ── What it costs ──


def test_a_queued_call_has_one_statement_as_a_rule(
    busy: Tracker,
    environment: EnvironmentRef,
    trips: RoundTrips,  # noqa: F811
) -> None:
    def looks(who: str, count: int) -> int:
        with looks_counted(trips) as found:
            assert statuses(busy, who, count) == [202] * count
        return len(found)

    assert looks("server", 1) == 1, "nothing is known of the environment"
    assert looks("server", 50) == 0
    assert looks("alice", 2) == 1, "nor of what its users have waiting"
    assert looks("bob", STEP) == 0
    assert looks("bob", SHARE // queue_quotas.COUNT_STEPS) == 1


def test_users_who_are_refused_share_one_look(
    busy: Tracker,
    environment: EnvironmentRef,
    trips: RoundTrips,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many they are: half is taken, and each of them has something waiting."""
    monkeypatch.setattr(queue_quotas, "CACHE_SECONDS", 600.0)  # that of one moment, however slow the machine is
    pile_up(environment, MOST // 2, "user", "usr_x")
    pile_up(environment, 40, "user", "usr_y")
    theirs = Run.objects.using(environment.cluster).filter(caller_id="usr_y")
    theirs.update(caller_id=Concat(Value("usr_"), Right("id", 8)))
    users = [
        Caller("user", f"usr_{n:08}", frozenset(), plan=environment.plan, environment=environment) for n in range(1, 41)
    ]
    as_another_process()
    before = waiting(environment)
    with looks_counted(trips) as looks:
        for each in users * 2:
            with pytest.raises(TooManyQueued, match="You have some waiting"):
                start_run(NewRun(environment, each, "sum", "{}", is_async=True))
    assert len(looks) == 1
    with looks_counted(trips) as looks:
        assert queue(busy, "alice").status == 202, "a caller with an empty queue is served"
        with pytest.raises(TooManyQueued, match="You have some waiting"):
            start_run(NewRun(environment, users[0], "sum", "{}", is_async=True))
    assert not looks
    assert waiting(environment) == before + 1


def test_what_is_used_is_found_by_one_look_for_runs_and_bytes(
    busy: Tracker,
    environment: EnvironmentRef,
    trips: RoundTrips,  # noqa: F811
) -> None:
    pile_up(environment, 3, "user", "usr_x", size=10)
    pile_up(environment, 2, "key", "key_x", size=100)
    pile_up(environment, 4, "anonymous", "key_y", size=7)
    with looks_counted(trips) as looks:
        limits = busy.get("owner", "/limits").json["limits"]
    assert [limits[name]["used"] for name in ("queued_runs", "queued_bytes")] == [3, 200], "of the kind that has most"
    assert [limits[f"visitor_queued_{name}"]["used"] for name in ("runs", "bytes")] == [4, 28]
    assert len(looks) == 2, "one for anonymous callers, one for all others"


@statistics
def test_a_look_reads_what_waits_and_no_more_than_the_budget(
    busy: Tracker, environment: EnvironmentRef, make_tracker: Any, statistics: bool
) -> None:
    using = environment.cluster
    record_past_runs(environment)
    other: Tracker = make_tracker(DOCUMENT, name="Other")
    neighbour = environment_ref(other.environment_id)
    assert neighbour is not None
    deploy(other, "sum", SUM)
    pile_up(neighbour, 20_000, "key", "key_x")
    pile_up(environment, 500, "user", "usr_x")
    if statistics:
        gather_statistics(using)
    for where, kind, most, expected in (
        (environment, queue_quotas.USERS, 500, 500),
        (neighbour, queue_quotas.KEYS, MOST, MOST),
    ):
        with count_touched_rows(using, "platform.functions_run") as cost:
            assert queue_quotas._count(where, kind).taken.runs == expected
        assert cost.read <= most
    with count_touched_rows(using, "platform.functions_run") as cost:
        start_run(NewRun(environment, key_of(environment), "sum", "{}"))
    assert cost.read <= 2 * FREE.function_concurrency
