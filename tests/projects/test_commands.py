"""`manage.py create_project`, `list_projects`, `sweep`."""

from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections

from accounts.models import AuditEntry, User
from platform_site.api import ids
from projects.models import Project
from tests.projects.conftest import environment_of, make_project, schemas_in

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def run(*arguments: str, **options: Any) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out, **options)
    return out.getvalue()


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
        ("x", "nobody@example.com", "No account has the e-mail address nobody@example.com"),
    ],
)
def test_create_project_says_what_is_wrong(alice: User, name: str, owner: str, says: str) -> None:
    with pytest.raises(CommandError, match=says):
        run("create_project", name, owner=owner)
    assert not Project.objects.exists()


def test_list_projects_narrows_by_whatever_one_has(alice: User, bob: User) -> None:
    mine, other = make_project(alice, "Mine\nwith a line"), make_project(bob, "Other", region="eu-west-1")
    assert [line.split()[0] for line in run("list_projects").splitlines()] == [other.pk, mine.pk]
    for words in (mine.pk, environment_of(mine).pk, "mine", alice.email):
        assert [line.split()[0] for line in run("list_projects", words).splitlines()] == [mine.pk]
    assert other.pk in run("list_projects", region="eu-west-1")
    assert "and more" in run("list_projects", limit=1)


def test_sweep_cleans_up_now(settings: Any) -> None:
    settings.ORPHAN_GRACE_SECONDS = 0
    with connections["us-east-1"].cursor() as cursor:
        cursor.execute(f'CREATE SCHEMA "{ids.new("env")}"')
    run("sweep")
    assert schemas_in("us-east-1") == []
