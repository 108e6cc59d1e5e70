"""The console's page that suspends a project: which roles may, what it asks, what it shows, and what staff can still
open."""

import pytest
from django.test import Client

from accounts import audit
from accounts.models import AuditEntry, User
from accounts.staff.roles import StaffRole
from projects import services
from projects.models import Project
from tests.projects.conftest import environment_of, key_for, make_project
from tests.support.client import Api
from tests.support.console import Hire
from tests.support.console import hire as hire

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

WHY = "Unpaid: billing@example.com"


@pytest.fixture
def project(alice: User) -> Project:
    return make_project(alice)


def shown(console: Client, path: str) -> str:
    answer = console.get(f"/admin/projects/project/{path}")
    assert answer.status_code == 200, answer.status_code
    return answer.content.decode()


def suspend(project: Project) -> None:
    services.suspend_project(project.pk, reason=WHY, actor=audit.SYSTEM)


@pytest.mark.exhaustive
def test_an_operator_suspends_and_resumes(hire: Hire, api: Api, project: Project) -> None:
    console, key = hire(StaffRole.OPERATOR), key_for(environment_of(project).pk, "rows:read")
    address = f"/admin/projects/project/{project.pk}"
    assert f"{project.pk}/suspend/".replace("_", "_5F") in shown(console, f"{project.pk}/change/")
    asked = shown(console, f"{project.pk}/suspend/")
    assert "project_suspended" in asked
    assert api.get("/v1/auth/me", token=key).status == 200, "looking changes nothing"
    done = console.post(f"{address}/suspend/", {"reason": f"  {WHY} "}, follow=True)
    assert f"{project.name} is suspended." in done.content.decode()
    assert api.get("/v1/auth/me", token=key).error == "project_suspended"
    for page in (f"{project.pk}/change/", f"{project.pk}/resume/", f"{project.pk}/suspend/"):
        assert WHY in shown(console, page), page
    assert "Suspended since" in shown(console, f"{project.pk}/change/")
    done = console.post(f"{address}/resume/", follow=True)
    assert "was resumed." in done.content.decode()
    assert api.get("/v1/auth/me", token=key).status == 200
    entries = AuditEntry.objects.filter(project_id=project.pk, action__in=["project.suspended", "project.resumed"])
    assert [(each.action, each.actor_kind, each.detail["reason"]) for each in entries.order_by("at")] == [
        ("project.suspended", "staff", WHY),
        ("project.resumed", "staff", WHY),
    ]


def test_an_old_page_says_how_it_stands_now(hire: Hire, project: Project) -> None:
    """Two operators have the same page open: what the second presses is said, not guessed."""
    console = hire(StaffRole.OPERATOR)
    suspend(project)
    assert f"Why {project.name} is suspended" in shown(console, f"{project.pk}/suspend/")
    console.post(f"/admin/projects/project/{project.pk}/suspend/", {"reason": "Fraud"})
    project.refresh_from_db()
    assert project.suspension_reason == "Fraud"
    services.resume_project(project.pk, actor=audit.SYSTEM)
    assert "there is nothing to do" in shown(console, f"{project.pk}/resume/")
    done = console.post(f"/admin/projects/project/{project.pk}/resume/", follow=True)
    assert "was not suspended" in done.content.decode()


@pytest.mark.parametrize("reason", ["", "x" * 501, "a\x1b[2Jscreen", "two\nlines"])
def test_it_asks_for_a_reason(hire: Hire, project: Project, reason: str) -> None:
    answer = hire(StaffRole.OPERATOR).post(f"/admin/projects/project/{project.pk}/suspend/", {"reason": reason})
    assert answer.status_code == 200
    assert 'role="alert"' in answer.content.decode()
    assert Project.objects.get().suspended_at is None


def test_support_sees_it_and_cannot_do_it(hire: Hire, alice: User, project: Project) -> None:
    suspend(project)
    support = hire(StaffRole.SUPPORT)
    assert WHY in shown(support, f"{project.pk}/change/")
    assert "/resume/" not in shown(support, f"{project.pk}/change/")
    assert "suspended" in shown(support, "")
    stranger = Client()
    stranger.force_login(alice)
    for verb in ("suspend", "resume"):
        address = f"/admin/projects/project/{project.pk}/{verb}/"
        for method in ("get", "post"):
            assert getattr(support, method)(address, {"reason": "x"}).status_code == 403
            assert getattr(stranger, method)(address, {"reason": "x"}).status_code == 302
            assert getattr(Client(), method)(address, {"reason": "x"}).status_code == 302
    project.refresh_from_db()
    assert project.suspension_reason == WHY


def test_the_list_says_and_filters_it(hire: Hire, alice: User, project: Project) -> None:
    other, console = make_project(alice, "Other"), hire(StaffRole.SUPPORT)
    suspend(project)
    assert [pk in shown(console, "?suspended=yes") for pk in (project.pk, other.pk)] == [True, False]
    assert [pk in shown(console, "?suspended=no") for pk in (project.pk, other.pk)] == [False, True]


def test_the_pages_of_operators_stay_open(hire: Hire, project: Project) -> None:
    console = hire(StaffRole.OPERATOR)
    suspend(project)
    assert console.get("/admin/").status_code == 200
    assert console.get(f"/admin/waiting/{project.region}/").status_code == 200


def test_what_is_deleted_is_not_suspended(hire: Hire, project: Project) -> None:
    Project.objects.update(deleted_at="2026-01-01T00:00:00Z")
    console = hire(StaffRole.OPERATOR)
    for verb in ("suspend", "resume"):
        assert console.post(f"/admin/projects/project/{project.pk}/{verb}/", {"reason": "x"}).status_code == 404
        assert console.get(f"/admin/projects/project/prj_x/{verb}/").status_code == 404
    assert f"/{project.pk}/suspend/" not in shown(console, f"{project.pk}/change/").replace("_5F", "_")
