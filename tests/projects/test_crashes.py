"""`kill -9` while projects are created and deleted: nothing or all of it, after at most one run of the periodic job.

Real processes die here (`tests.support.project_crash_process`), at every failpoint and at random moments.
"""

import random
import threading
from contextlib import suppress
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction

from accounts.models import AuditEntry, User
from platform_site.identity import ids
from projects import tasks
from projects.models import Environment, Member, Project
from projects.provisioning import schemas as provisioning_schemas
from tests.projects.conftest import make_orphan, make_project, schemas_in, token_of
from tests.support.client import Api
from tests.support.project_crashes import Run
from tests.support.unavailable import terminate_connection

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(transaction=True, databases="__all__")]


@pytest.fixture(autouse=True)
def _sweeps_wait_for_nothing(settings: Any) -> None:
    settings.ORPHAN_GRACE_SECONDS = settings.DELETION_GRACE_SECONDS = 0
    settings.RATE_LIMIT_FACTOR = 100  # the random kills look at every project after each


def every_project_is_whole() -> None:
    """Each schema has its environment, each environment its schema, each project both, and nothing is half deleted."""
    assert not Project.objects.filter(deleted_at__isnull=False).exists()
    assert schemas_in("us-east-1") == sorted(Environment.objects.values_list("pk", flat=True))
    for project in Project.objects.all():
        assert set(project.environments.values_list("name", "status")) == {
            ("development", "ready"),
            ("production", "ready"),
        }
        assert project.memberships.count() == 1
    assert Environment.objects.count() == 2 * Project.objects.count() == 2 * Member.objects.count()


@pytest.mark.parametrize(
    ("failpoint", "schemas", "projects"),
    [("create.before_region_commit", 0, 0), ("create.after_region_commit", 2, 0), ("create.after_commit", 2, 1)],
)
def test_killed_while_it_makes_a_project(
    api: Api, alice: User, run: Run, failpoint: str, schemas: int, projects: int
) -> None:
    left_by_others = set(schemas_in("us-east-1"))  # tests that do not clean up: the periodic job removes what they left
    assert run(do="create", account=alice.pk, failpoint=failpoint)["signal"] == 9
    made = set(schemas_in("us-east-1")) - left_by_others
    assert (len(made), Project.objects.count()) == (schemas, projects)
    assert len(api.get("/v1/projects", token=token_of(alice)).json["data"]) == projects
    tasks.finish_and_clean()
    assert Project.objects.count() == projects
    every_project_is_whole()


@pytest.mark.parametrize(
    "failpoint",
    ["delete.after_mark", "drop.after_schema", "delete.before_environment_record", "delete.before_record"],
)
def test_killed_while_it_deletes_a_project(api: Api, alice: User, run: Run, failpoint: str) -> None:
    doomed, kept = make_project(alice, "Doomed"), make_project(alice, "Kept")
    token = token_of(alice)
    assert run(do="delete", project=doomed.pk, failpoint=failpoint)["signal"] == 9
    assert api.get(f"/v1/projects/{doomed.pk}", token=token).status == 404
    assert [project["name"] for project in api.get("/v1/projects", token=token).json["data"]] == ["Kept"]
    tasks.finish_and_clean()
    assert list(Project.objects.all()) == [kept]
    every_project_is_whole()


def test_killed_between_two_batches_of_tables(alice: User, run: Run) -> None:
    doomed = make_project(alice)
    environment_id = doomed.environments.first().pk  # type: ignore[union-attr]
    with connections["us-east-1"].cursor() as cursor:
        for number in range(120):
            cursor.execute(f'CREATE TABLE "{environment_id}".t{number} (id int)')
    run(do="delete", project=doomed.pk)
    assert run(do="finish", project=doomed.pk, failpoint="drop.between_batches")["signal"] == 9
    assert provisioning_schemas.count_tables(environment_id, "us-east-1") == 70
    tasks.finish_and_clean()
    every_project_is_whole()
    assert not Project.objects.exists()


def test_twenty_kills_at_random_moments_leave_no_orphan_and_no_torso(api: Api, alice: User, run: Run) -> None:
    chance = random.Random(25)
    projects = [make_project(alice, f"P{n}", plan="team") for n in range(10)]
    token = token_of(alice)
    making = max(run(do="create", account=alice.pk)["seconds"] for _ in range(3))
    deleting = run(do="delete", project=projects.pop().pk)["seconds"]
    killed = 0
    for number in range(100):
        if killed == 20:
            break
        if number % 2 or not projects:
            order, longest = {"do": "create", "account": alice.pk}, making
        else:
            order, longest = {"do": "delete", "project": projects.pop().pk}, deleting
        before = {project["id"] for project in api.get("/v1/projects?limit=100", token=token).json["data"]}
        killed += run(**order, kill_after=chance.uniform(0, longest * 1.2))["signal"] == 9
        after = {project["id"] for project in api.get("/v1/projects?limit=100", token=token).json["data"]}
        # Everything visible is complete, before any periodic job runs.
        for project_id in after:
            shown = api.get(f"/v1/projects/{project_id}/environments", token=token)
            assert {each["id"] for each in shown.json["data"]} <= set(schemas_in("us-east-1"))
            assert len(shown.json["data"]) == 2
        changed = before ^ after
        assert len(changed) <= 1
        tasks.finish_and_clean()
        every_project_is_whole()
        assert {project.pk for project in Project.objects.all()} == after
        if order["do"] == "delete" and order["project"] in after:
            projects.insert(0, Project.objects.get(pk=order["project"]))
    assert killed == 20


# ── The periodic job and live transactions ──────────────────────────────────────────────────────────────────────────


def test_schema_of_a_project_in_creation_is_kept_at_any_age(alice: User) -> None:
    """A host whose clock is behind makes ids that look old: it is the maker's lock that protects them, not their
    age."""
    region_committed, go_on = threading.Event(), threading.Event()

    def make() -> None:
        try:
            with transaction.atomic():  # as an idempotency record's, around the service's own
                make_project(alice)
                region_committed.set()
                assert go_on.wait(10)
        finally:
            connections.close_all()

    maker = threading.Thread(target=make)
    maker.start()
    try:
        assert region_committed.wait(10)
        assert len(schemas_in("us-east-1")) == 2
        assert not Environment.objects.exists()
        tasks.finish_and_clean()
        assert len(schemas_in("us-east-1")) == 2
    finally:
        go_on.set()
        maker.join(10)
    assert Environment.objects.count() == 2
    every_project_is_whole()


def test_only_schemas_named_as_environments_are_swept(alice: User) -> None:
    orphan = ids.new("env")
    for name in (orphan, "env_backup", "environments", "reports"):
        make_orphan(name=name)
    with connections["us-east-1"].cursor() as cursor:
        tasks.finish_and_clean()
        cursor.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname = ANY(%s) ORDER BY 1",
            [[orphan, "env_backup", "environments", "reports"]],
        )
        assert [name for (name,) in cursor.fetchall()] == ["env_backup", "environments", "reports"]
        for name in ("env_backup", "environments", "reports"):
            cursor.execute(f'DROP SCHEMA "{name}"')


def test_a_young_orphan_waits_for_its_grace(settings: Any) -> None:
    settings.ORPHAN_GRACE_SECONDS = 60
    orphan = make_orphan()
    tasks.finish_and_clean()
    assert schemas_in("us-east-1") == [orphan]


def test_periodic_job_continues_past_its_batch() -> None:
    for _ in range(25):
        make_orphan()
    dropped = list(provisioning_schemas.drop_orphans("us-east-1", batch=10))
    assert len(dropped) == 25
    assert schemas_in("us-east-1") == []


def test_orphaned_schema_is_kept_until_an_operator_drops_it(alice: User, caplog: pytest.LogCaptureFixture) -> None:
    """As after a restore of the control database to the moment before the project was made, and of nothing else."""
    kept, lost = make_project(alice, "Kept"), make_project(alice, "Lost")
    forgotten = sorted(lost.environments.values_list("pk", flat=True))
    with connections["us-east-1"].cursor() as cursor:
        cursor.execute(f'CREATE TABLE "{forgotten[0]}".notes AS SELECT 1 AS n')
    Environment.objects.filter(project=lost).delete()
    lost.delete()
    orphan = make_orphan()
    tasks.finish_and_clean()
    tasks.remove_orphaned_rows()
    assert orphan not in schemas_in("us-east-1")
    assert set(forgotten) < set(schemas_in("us-east-1"))
    told = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert [each.split()[6] for each in told] == [f"{each}," for each in forgotten]
    assert [provisioning_schemas.count_tables(each, "us-east-1") for each in forgotten] == [1, 0]
    for environment_id in (*forgotten, *forgotten, kept.environments.get(name="production").pk):
        with suppress(CommandError):
            call_command("cleanup", drop=environment_id)
    every_project_is_whole()
    assert Project.objects.get() == kept
    entries = AuditEntry.objects.filter(action="environment.schema_dropped").order_by("target_id")
    assert [(each.target_id, each.actor_kind, each.detail["tables"]) for each in entries] == [
        (forgotten[0], "system", 1), (forgotten[1], "system", 0),
    ]  # fmt: skip


def test_region_lost_after_commit_is_completed_by_the_periodic_job(alice: User) -> None:
    """Work after a commit in the region (here, deleting the markers) neither fails the request nor is it lost."""
    with transaction.atomic():
        project = make_project(alice)
        terminate_connection(connections["us-east-1"])
    environment_ids = set(project.environments.values_list("pk", flat=True))
    assert provisioning_schemas.being_created(schemas_in("us-east-1"), "us-east-1") & environment_ids
    tasks.finish_and_clean()
    assert provisioning_schemas.being_created(schemas_in("us-east-1"), "us-east-1") == set()
    every_project_is_whole()
