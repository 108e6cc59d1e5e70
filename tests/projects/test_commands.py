"""`manage.py create_project`, `list_projects`, `cleanup`."""

from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import OperationalError, connections

from accounts.models import AuditEntry, User
from platform_site.identity import ids
from projects.models import Project
from tests.projects.conftest import environment_of, make_orphan, make_project, schemas_in
from tests.support.command_output import run

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def test_create_project_prints_the_ids(alice: User) -> None:
    printed = run("create_project", "Tracker", owner="ALICE@example.com", region="eu-west-1", plan="pro")
    project = Project.objects.get()
    assert (project.name, project.region, project.plan) == ("Tracker", "eu-west-1", "pro")
    for thing in (project.pk, environment_of(project).pk, environment_of(project, "development").pk):
        assert thing in printed
    assert AuditEntry.objects.get(action="project.created").actor_kind == "system"


@pytest.mark.parametrize(
    ("name", "owner", "says"),
    [
        (" ", "alice@example.com", "blank"),
        ("x" * 65, "alice@example.com", "64"),
        ("x", "nobody@example.com", "no platform account nobody@example.com"),
    ],
)
def test_create_project_says_what_is_wrong(alice: User, name: str, owner: str, says: str) -> None:
    with pytest.raises(CommandError, match=says):
        run("create_project", name, owner=owner)
    assert not Project.objects.exists()


def projects_in(printed: str) -> list[str]:
    return [line.split()[0] for line in printed.splitlines() if not line.startswith(" ")]


def test_list_projects_names_the_environments_that_other_commands_ask_for(alice: User) -> None:
    project = make_project(alice)
    lines = [line.split() for line in run("list_projects").splitlines() if line.startswith(" ")]
    environments = project.environments.order_by("name")
    assert lines == [[each.pk, "ready", each.name] for each in environments]


def test_list_projects_narrows_by_whatever_one_has(alice: User, bob: User) -> None:
    mine, other = make_project(alice, "Mine\nwith a line"), make_project(bob, "Other", region="eu-west-1")
    assert projects_in(run("list_projects")) == [other.pk, mine.pk]
    for words in (mine.pk, environment_of(mine).pk, "mine", alice.email):
        assert projects_in(run("list_projects", words)) == [mine.pk]
    assert other.pk in run("list_projects", region="eu-west-1")
    assert "and more" in run("list_projects", limit=1)
    for wrong in ("0", "-2", "x", "1e3"):
        with pytest.raises(CommandError, match="must be a number from 1"):
            run("list_projects", "--limit", wrong)
    said = StringIO()
    assert run("list_projects", "nothing of this name", stderr=said) == ""
    assert "No project matches." in said.getvalue()


def test_sweep_says_what_a_restore_of_one_database_alone_would_cost(alice: User) -> None:
    project = make_project(alice)
    assert "Every environment has its schema" in run("cleanup", check=True)
    lost, stray, cut_off = environment_of(project).pk, ids.new("env"), make_orphan()
    with connections["us-east-1"].cursor() as cursor:
        cursor.execute(f'CREATE SCHEMA "{stray}"')
        cursor.execute(f'DROP SCHEMA "{lost}" CASCADE')
    told = StringIO()
    with pytest.raises(CommandError, match="differ in 3"):
        call_command("cleanup", check=True, stdout=told)
    assert [line.split("  ")[1:] for line in told.getvalue().splitlines()] == [
        *sorted(
            [
                [stray, "a schema that no environment owns: kept until cleanup --drop"],
                [cut_off, "a schema that no environment owns: dropped by the next cleanup"],
            ]
        ),
        [lost, "an environment without its schema: delete it"],
    ]
    assert stray in schemas_in("us-east-1"), "it only looked"


def test_sweep_command_cleans_up_at_once(settings: Any) -> None:
    settings.ORPHAN_GRACE_SECONDS = 0
    make_orphan()
    assert run("cleanup").strip() == "Done."
    assert schemas_in("us-east-1") == []


def test_cleanup_drops_a_schema_while_another_region_is_unavailable(settings: Any) -> None:
    settings.ORPHAN_GRACE_SECONDS = 0
    stray = ids.new("env")
    with connections["eu-west-1"].cursor() as cursor:
        cursor.execute(f'CREATE SCHEMA "{stray}"')

    def away(*_: Any) -> None:
        raise OperationalError("the server closed the connection")

    with connections["us-east-1"].execute_wrapper(away):
        with pytest.raises(CommandError, match="us-east-1: OperationalError, try again"):
            run("cleanup", drop=ids.new("env"))
        assert f"eu-west-1  {stray}  dropped" in run("cleanup", drop=stray)
    with pytest.raises(CommandError, match=f"No region has an orphaned schema of {stray}[.]$"):
        run("cleanup", drop=stray)
    with pytest.raises(CommandError, match="not allowed with argument"):
        run("cleanup", "--check", "--drop", stray)
