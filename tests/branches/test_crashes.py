"""`kill -9` while branches are created, filled and deleted: all of it or nothing, after at most one run of each
periodic job."""

import random
from typing import Any

import pytest
from django.db.models import Count

from accounts import audit
from accounts.models import AuditEntry
from functions.models import Function
from projects import services, tasks
from projects.models import Environment
from rows.models import CurrentVersion, SchemaVersion
from rows.outbox import audit as audit_outbox
from tests.branches.conftest import Branch, row, rows
from tests.projects.conftest import schemas_in
from tests.rows.conftest import Tracker
from tests.support.project_crashes import Run
from webhooks.models import Webhook

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(transaction=True, databases="__all__")]
REGION = "us-east-1"


@pytest.fixture(autouse=True)
def _sweeps_wait_for_nothing(settings: Any) -> None:
    settings.ORPHAN_GRACE_SECONDS = settings.DELETION_GRACE_SECONDS = 0


@pytest.fixture
def order(tracker: Tracker) -> dict[str, Any]:
    answer = tracker.post("owner", "/webhooks", {"url": "https://hooks.example.com/", "events": ["*"]})
    assert answer.status == 201
    return {"do": "branch", "project": tracker.project.pk, "source": tracker.environment_id, "name": "mortal"}


def everything_is_whole(tracker: Tracker) -> None:
    """Each schema has its environment and each ready branch all that it copied; the region keeps nothing of others."""
    known = set(Environment.objects.values_list("pk", flat=True))
    assert set(schemas_in(REGION)) == known
    assert set(Environment.objects.values_list("status", flat=True)) == {"ready"}
    for environment_id in Environment.objects.branches().values_list("pk", flat=True):
        assert len(rows(tracker, "tasks", environment_id)) == 2
        assert Webhook.objects.using(REGION).filter(environment_id=environment_id, enabled=False).count() == 1
    for model in (CurrentVersion, SchemaVersion, Webhook, Function):
        kept = model.objects.using(REGION).values_list("environment_id", flat=True)
        assert set(kept) <= known
        assert not model.objects.using(REGION).values("environment_id").annotate(n=Count("pk")).filter(n__gt=1).exists()


@pytest.mark.parametrize(
    ("failpoint", "schemas", "branches"),
    [
        ("branch.between_tables", 2, 0),
        ("branch.before_region_commit", 2, 0),
        ("branch.after_region_commit", 3, 0),
        ("branch.after_commit", 3, 1),
    ],
)
def test_killed_while_it_makes_a_small_one(
    tracker: Tracker, order: Any, run: Run, failpoint: str, schemas: int, branches: int
) -> None:  # fmt: skip
    assert run(**order, failpoint=failpoint)["signal"] == 9
    assert (len(schemas_in(REGION)), Environment.objects.branches().count()) == (schemas, branches)
    tasks.finish_branches()
    tasks.finish_and_clean()
    assert Environment.objects.branches().count() == branches
    everything_is_whole(tracker)
    # Whatever became of the first: the next one succeeds, under its name if that is free.
    assert run(**order | {"name": "next" if branches else "mortal"})["signal"] == 0
    everything_is_whole(tracker)


@pytest.mark.parametrize(
    ("failpoint", "schemas"),
    [
        ("branch.between_tables", 2),
        ("branch.before_region_commit", 2),
        ("branch.after_region_commit", 3),
        ("branch.before_ready", 3),
    ],
)
def test_killed_while_it_fills_a_large_one(
    tracker: Tracker, order: Any, run: Run, failpoint: str, schemas: int
) -> None:  # fmt: skip
    assert run(**order, large=True)["signal"] == 0
    made = Environment.objects.branches().get()
    assert made.status == "creating"
    assert run(do="fill", environment=made.pk, failpoint=failpoint)["signal"] == 9
    made.refresh_from_db()
    assert (made.status, len(schemas_in(REGION))) == ("creating", schemas)
    tasks.finish_and_clean()  # which owns the schemas of environments in the making to them
    assert len(schemas_in(REGION)) == schemas
    tasks.finish_branches()
    everything_is_whole(tracker)


@pytest.mark.parametrize("failpoint", ["delete.after_mark", "drop.after_schema", "delete.before_environment_record"])
def test_killed_while_it_deletes_one(
    tracker: Tracker, branch: Branch, order: Any, run: Run, failpoint: str
) -> None:  # fmt: skip
    doomed, kept = (branch(name, data="full").json["id"] for name in ("doomed", "kept"))
    killed = run(do="delete environment", project=tracker.project.pk, environment=doomed, failpoint=failpoint)
    assert killed["signal"] == 9
    owner = tracker.tokens["owner"]
    assert tracker.api.get("/v1/rows/tasks", token=owner, environment=doomed).status == 404
    tasks.finish_and_clean()
    assert list(Environment.objects.branches().values_list("pk", flat=True)) == [kept]
    everything_is_whole(tracker)


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_kills_at_random_moments(tracker: Tracker, order: Any, run: Run, kills: int) -> None:
    chance = random.Random(37)
    tracker.project.plan = "team"
    tracker.project.save(update_fields=["plan"])
    longest = max(run(**order | {"name": f"warm{n}"})["seconds"] for n in range(2))
    killed = 0
    for number in range(6 * kills):
        if killed >= kills:
            break
        what = order | {"name": f"b{number}", "large": bool(number % 2)}
        killed += run(**what, kill_after=chance.uniform(0, longest * 1.2))["signal"] == 9
        waiting = Environment.objects.filter(status="creating").first()
        if waiting is not None:
            killed += run(do="fill", environment=waiting.pk, kill_after=chance.uniform(0, longest))["signal"] == 9
        tasks.finish_branches()
        tasks.finish_and_clean()
        everything_is_whole(tracker)
        while extra := Environment.objects.branches().order_by("pk")[4:].first():
            run(do="delete environment", project=tracker.project.pk, environment=extra.pk)
    assert killed >= kills


# ── Resets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def blue(tracker: Tracker, branch: Branch) -> str:
    """A branch with a row more than production, and no webhook."""
    made = str(branch("blue", data="full").json["id"])
    row(tracker, "lists", environment=made, name="Only here", owner_id=tracker.users["alice"])
    return made


def lists_of(tracker: Tracker, environment_id: str) -> list[str]:
    return sorted(each["name"] for each in rows(tracker, "lists", environment_id))


@pytest.mark.parametrize(
    ("failpoint", "is_reset"),
    [("branch.between_tables", False), ("reset.before_region_commit", False), ("reset.after_region_commit", True)],
)
def test_killed_while_it_resets(tracker: Tracker, blue: str, run: Run, failpoint: str, is_reset: bool) -> None:
    assert run(do="reset", environment=blue, failpoint=failpoint)["signal"] == 9
    assert lists_of(tracker, blue) == (["Home"] if is_reset else ["Home", "Only here"])
    audit_outbox.flush_oldest(REGION)
    assert AuditEntry.objects.filter(action="environment.reset").count() == is_reset
    assert not [name for name in schemas_in(REGION) if name.startswith("reset_")]
    assert run(do="reset", environment=blue)["signal"] == 0
    assert lists_of(tracker, blue) == ["Home"]


@pytest.mark.parametrize(
    "failpoint", ["reset.before_region_commit", "reset.after_region_commit", "branch.before_ready"]
)
def test_killed_while_a_worker_resets(tracker: Tracker, blue: str, run: Run, settings: Any, failpoint: str) -> None:
    settings.BRANCH_AT_ONCE_BYTES = 0
    services.reset_branch(blue, data="full", actor=audit.SYSTEM)
    assert run(do="fill", environment=blue, failpoint=failpoint)["signal"] == 9
    assert Environment.objects.get(pk=blue).status == "creating"
    tasks.finish_branches()
    assert Environment.objects.get(pk=blue).status == "ready"
    assert lists_of(tracker, blue) == ["Home"]
