"""The console's page of orphaned schemas: which roles see it, which may drop one, and what that requires."""

import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.test import Client

from accounts.models import AuditEntry, User
from accounts.staff.roles import StaffRole
from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout
from projects.models import Environment, Project
from projects.provisioning import schemas
from rows.models import CurrentVersion
from tests.projects.conftest import make_orphan, make_project, schemas_in
from tests.support.console import Hire
from tests.support.console import hire as hire
from tests.support.unavailable import database_unavailable

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

PAGE = "/admin/orphaned-schemas/"
REGION = "us-east-1"
EMPTY = "every schema has its environment"


@pytest.fixture(autouse=True)
def _without_grace(settings: Any) -> None:
    settings.ORPHAN_GRACE_SECONDS = 0


@pytest.fixture
def lost(alice: User) -> list[str]:
    """The environments of a project that the control database has forgotten, beside one that it has not, and of a
    schema whose making was cut off."""
    make_project(alice, "Kept")
    project = make_project(alice, "Lost")
    found = sorted(project.environments.values_list("pk", flat=True))
    with closing(connections[REGION].cursor()) as cursor:
        cursor.execute(f'CREATE TABLE "{found[0]}".notes AS SELECT 1 AS n')
    Environment.objects.filter(project=project).delete()
    project.delete()
    make_orphan()
    return found


def shown(console: Client, status: int = 200) -> str:
    answer = console.get(PAGE)
    assert answer.status_code == status
    return answer.content.decode()


def press(console: Client, environment_id: str, **more: str) -> str:
    posted = {"environment": environment_id, "region": REGION, **more}
    return console.post(PAGE, posted, follow=True).content.decode()


@pytest.mark.exhaustive
def test_an_operator_lets_go_of_one_whose_id_was_typed(hire: Hire, lost: list[str]) -> None:
    console = hire(StaffRole.OPERATOR)
    first, second = lost
    before = schemas_in(REGION)
    text = shown(console)
    assert text.count("Drop the schema of") == 2, "what is known or in the making is not among them"
    assert first in text
    assert second in text
    asked = press(console, first)
    assert "permanently deletes" in asked
    for typed in ("", second, first.upper()):
        assert "Nothing was changed" in press(console, first, typed=typed)
    assert schemas_in(REGION) == before, "so far nothing was dropped"
    assert not AuditEntry.objects.filter(action="environment.schema_dropped").exists()
    said = press(console, first, typed=f" {first} ")
    assert f"The schema of {first} is dropped." in said
    assert schemas_in(REGION) == [each for each in before if each != first]
    entry = AuditEntry.objects.get(action="environment.schema_dropped")
    operator = User.objects.get(email__startswith="operator")
    assert (entry.actor_kind, entry.actor_id, entry.target_id, entry.environment_id, entry.detail) == (
        "staff", operator.pk, first, first, {"region": REGION, "tables": 1},
    )  # fmt: skip
    assert not CurrentVersion.objects.using(REGION).filter(environment_id=first).exists()
    assert "no longer possible" in press(console, first, typed=first)
    press(console, second, typed=second)
    assert EMPTY in shown(console)


def test_support_looks_and_changes_nothing_and_nobody_else_sees_it(
    hire: Hire,
    lost: list[str],
    alice: User,
) -> None:
    support, before = hire(StaffRole.SUPPORT), schemas_in(REGION)
    text = shown(support)
    assert lost[0] in text
    assert "Drop…" not in text
    assert PAGE in support.get("/admin/").content.decode(), "the sidebar leads to it"
    posted = {"environment": lost[0], "region": REGION, "typed": lost[0]}
    assert support.post(PAGE, posted).status_code == 403
    owner, stranger = Client(), Client()
    owner.force_login(alice)
    for console in (owner, stranger):
        assert console.get(PAGE).status_code == 302
        assert console.post(PAGE, posted).status_code == 302
    forged = Client(enforce_csrf_checks=True)
    forged.cookies = hire(StaffRole.OPERATOR).cookies
    assert forged.post(PAGE, posted).status_code == 403
    assert schemas_in(REGION) == before
    assert not AuditEntry.objects.filter(action="environment.schema_dropped").exists()


@pytest.mark.parametrize("which", ["known", "in the making", "another region's", "another schema"])
def test_nothing_else_is_dropped(hire: Hire, lost: list[str], which: str) -> None:
    console, before = hire(StaffRole.OPERATOR), schemas_in(REGION)
    [orphan] = schemas.being_created(before, REGION)
    known = str(Project.objects.get().environments.values_list("pk", flat=True)[0])
    name = {"known": known, "in the making": orphan, "another schema": "platform"}.get(which, lost[0])
    more = {"region": "eu-west-1"} if which == "another region's" else {}
    assert "no longer possible" in press(console, name, typed=name, **more)
    for odd in ({"region": "mars"}, {"region": ""}):
        assert console.post(PAGE, {"environment": lost[0], **odd}).status_code == 404
    assert schemas_in(REGION) == before
    with closing(connections[REGION].cursor()) as cursor:
        cursor.execute("SELECT to_regnamespace('platform') IS NOT NULL")
        assert cursor.fetchone() == (True,)


def test_one_that_the_control_database_knows_again_is_kept(hire: Hire, alice: User) -> None:
    """Restored to a later moment after the page was opened."""
    console, project = hire(StaffRole.OPERATOR), make_project(alice, "Back")
    environment = project.environments.get(name="production")
    branch = Environment.objects.filter(pk=environment.pk)
    values = branch.values().get()
    branch.delete()
    assert environment.pk in shown(console)
    Environment.objects.create(**values)
    assert EMPTY in shown(console)
    assert "no longer possible" in press(console, environment.pk, typed=environment.pk)
    assert environment.pk in schemas_in(REGION)


def test_long_list_shows_first_schemas_and_says_there_are_more(
    hire: Hire,
    lost: list[str],
    alice: User,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console = hire(StaffRole.SUPPORT)
    assert "And more" not in shown(console)
    for name in ("A", "B"):
        Environment.objects.filter(project=(project := make_project(alice, name))).delete()
        project.delete()
    looks: list[str] = []
    monkeypatch.setattr("platform_site.console.orphaned_schemas.SHOWN", 1)
    monkeypatch.setattr("projects.provisioning.schemas.has_schema", lambda each, _: bool(looks.append(each)) or True)
    text = shown(console)
    assert lost[0] in text
    assert lost[1] not in text
    assert "And more" in text
    assert looks == lost


def test_concurrent_drops_of_one_schema_give_one_audit_entry(
    hire: Hire,
    lost: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = hire(StaffRole.OPERATOR), hire(StaffRole.SUPERUSER)
    drop, said = schemas.drop_orphan, []

    def press_too() -> None:
        said.append(press(second, lost[0], typed=lost[0]))
        connections.close_all()

    def meanwhile(environment_id: str, cluster: str) -> None:
        monkeypatch.setattr(schemas, "drop_orphan", drop)
        thread = threading.Thread(target=press_too)
        thread.start()
        thread.join()
        drop(environment_id, cluster)

    monkeypatch.setattr(schemas, "drop_orphan", meanwhile)
    assert "is dropped" in press(first, lost[0], typed=lost[0])
    assert "Another process is changing this schema" in said[0]
    entry = AuditEntry.objects.get(action="environment.schema_dropped")
    assert entry.actor_id == User.objects.get(email__startswith="operator").pk
    assert "is dropped" in press(second, lost[1], typed=lost[1]), "no session holds a lock"


@contextmanager
def is_away(cluster: str) -> Iterator[None]:
    with embedded_postgres.connect(Layout(Path(os.environ["DATA_DIR"]))) as superuser:
        with database_unavailable(superuser, connections[cluster].settings_dict["NAME"]):
            yield
    connections[cluster].close()


def test_unavailable_region_is_named_and_others_are_shown(hire: Hire, lost: list[str]) -> None:
    console = hire(StaffRole.OPERATOR)
    with is_away("eu-west-1"):
        text = shown(console)
    assert "eu-west-1 or the control database is unavailable" in text
    assert lost[0] in text
    before = schemas_in(REGION)
    with is_away(REGION):
        asked = console.post(PAGE, {"environment": lost[0], "region": REGION, "typed": lost[0]})
    assert asked.status_code == 302
    assert "A database is unavailable" in shown(console)
    assert schemas_in(REGION) == before
    assert not AuditEntry.objects.filter(action="environment.schema_dropped").exists()
