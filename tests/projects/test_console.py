"""The console's pages for projects, environments and members, and its first page, through Django's own test client.

Each change made there goes through the service: the same rules, the same audit log with the member of staff in it, and the
same cached records forgotten. What the pages look like is for tests/console/test_pages_by_role.py and tests/browser.
"""

import re

import pytest
from django.contrib.admin.utils import quote
from django.db import connections
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts import audit
from accounts.models import AuditEntry, ServerKey, User
from accounts.registration import pool_settings
from accounts.users import service as accounts
from platform_site.console import rollups
from projects import services
from projects.models import Environment, Member, Project
from tests.projects.conftest import Make, environment_of, key_for, make_project, schemas_in, token_of
from tests.support.client import Api
from tests.support.html_forms import form_values

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture
def console(make_account: Make) -> Client:
    client = Client()
    client.force_login(make_account("staff", is_staff=True))
    return client


def page(console: Client, path: str, status: int = 200) -> str:
    answer = console.get(path)
    assert answer.status_code == status, answer.status_code
    return answer.content.decode()


@pytest.mark.parametrize(
    "path",
    ["/admin/", "/admin/projects/project/", "/admin/projects/environment/", "/admin/projects/member/",
     "/admin/projects/project/add/", "/admin/projects/member/add/"],
)  # fmt: skip
def test_only_staff_open_the_console(alice: User, path: str) -> None:
    make_project(alice)
    client = Client()
    assert client.get(path).status_code == 302
    client.force_login(alice)
    assert client.get(path).status_code == 302
    assert client.get(path, headers={"Authorization": f"Bearer {token_of(alice)}"}).status_code == 302


def test_a_project_is_found_by_whatever_one_has_of_it(console: Client, alice: User, bob: User) -> None:
    wanted, other = make_project(alice, "Wanted"), make_project(bob, "Other")
    for words in (wanted.pk, environment_of(wanted).pk, alice.email, alice.pk, "Want"):
        found = page(console, f"/admin/projects/project/?q={words}")
        assert wanted.pk in found, words
        assert other.pk not in found, words
    assert wanted.pk in page(console, f"/admin/projects/environment/?q={wanted.pk}")
    assert "Wanted" in page(console, f"/admin/projects/member/?q={alice.email}")


def test_a_projects_page_shows_environments_members_and_the_way_to_keys(console: Client, alice: User) -> None:
    project = make_project(alice, "<script>alert(1)</script>")
    shown = page(console, f"/admin/projects/project/{project.pk}/change/")
    for text in ("development", "production", alice.email, environment_of(project).pk, "us-east-1"):
        assert text in shown
    assert "<script>alert(1)" not in shown
    assert f"/admin/accounts/serverkey/?q={environment_of(project).pk}" in shown


def test_a_projects_page_shows_who_is_invited(console: Client, api: Api, alice: User) -> None:
    project = make_project(alice)
    pool_settings.change_settings(None, actor=audit.SYSTEM, sign_up="invited")
    asked = {"email": "nia@example.com", "role": "developer"}
    made = api.post(f"/v1/projects/{project.pk}/members", token=token_of(alice), json=asked).json
    shown = page(console, f"/admin/projects/project/{project.pk}/change/")
    assert "nia@example.com" in shown
    email = f"/admin/accounts/accountemail/{quote(made['id'])}/change/"
    assert email in shown
    assert project.pk in page(console, email)
    assert made["id"] in page(console, f"/admin/accounts/accountemail/?q={project.pk}")


def test_a_project_is_made_renamed_and_deleted_as_over_the_api(console: Client, api: Api, alice: User) -> None:
    made = console.post(
        "/admin/projects/project/add/",
        {"name": "By hand", "owner": "ALICE@example.com", "region": "eu-west-1", "plan": "pro"},
    )
    assert made.status_code == 302, made.content.decode()[-3000:]
    project = Project.objects.get()
    assert (project.region, project.plan, project.memberships.get().user) == ("eu-west-1", "pro", alice)
    assert len(schemas_in("eu-west-1")) == 2
    token = token_of(alice)
    assert api.get("/v1/limits", token=token).json["limits"]["projects_per_account"]["limit"] == 100
    changed = console.post(
        f"/admin/projects/project/{project.pk}/change/",
        {"name": "Renamed", "plan": "team"},
    )
    assert changed.status_code == 302, changed.content.decode()[-3000:]
    project.refresh_from_db()
    assert (project.name, project.plan) == ("Renamed", "team")
    assert api.get("/v1/limits", token=token).json["limits"]["projects_per_account"]["limit"] == 500  # at once
    asked = page(console, f"/admin/projects/project/{project.pk}/delete/")
    assert environment_of(project).pk in asked
    delete = f"/admin/projects/project/{project.pk}/delete/"
    for typed in ({}, {"confirm": "By hand"}, {"confirm": project.pk}):
        console.post(delete, {"post": "yes"} | typed)
        assert Project.objects.get().deleted_at is None, "without its name nothing goes"
    assert console.post(delete, {"post": "yes", "confirm": "Renamed"}).status_code == 302
    assert not Project.objects.exists()
    assert schemas_in("eu-west-1") == []
    trail = AuditEntry.objects.filter(project_id=project.pk).values_list("action", "actor_kind")
    assert {("project.created", "staff"), ("project.changed", "staff"), ("project.deleted", "staff")} <= set(trail)


@pytest.mark.parametrize("owner", ["nobody@example.com", "uma@example.com", ""])
def test_a_project_needs_a_platform_account_for_an_owner(
    console: Client, alice: User, make_account: Make, owner: str
) -> None:
    make_account("uma", pool_id=environment_of(make_project(alice)).pk)
    answer = console.post(
        "/admin/projects/project/add/", {"name": "x", "owner": owner, "region": "us-east-1", "plan": "free"}
    )
    assert answer.status_code == 200
    assert Project.objects.count() == 1


def test_nothing_is_deleted_by_the_hundred(console: Client, alice: User) -> None:
    project = make_project(alice)
    console.post(
        "/admin/projects/project/",
        {"action": "delete_selected", "_selected_action": [project.pk], "post": "yes"},
    )
    assert Project.objects.live().exists()


def test_members_are_added_changed_and_removed_but_never_the_last_owner(
    console: Client, api: Api, alice: User, bob: User
) -> None:
    project = make_project(alice)
    add = {"project_id": project.pk, "email": bob.email, "role": "viewer"}
    assert console.post("/admin/projects/member/add/", add).status_code == 302
    member = Member.objects.get(user=bob)
    assert f"{bob.email} is viewer of {project.name}" in page(console, f"/admin/projects/member/{member.pk}/change/")
    token = token_of(bob)
    assert api.patch(f"/v1/projects/{project.pk}", token=token, json={"name": "x"}).status == 403
    again = console.post("/admin/projects/member/add/", add)
    assert "already a member" in again.content.decode()
    assert console.post(f"/admin/projects/member/{member.pk}/change/", {"role": "developer"}).status_code == 302
    assert api.patch(f"/v1/projects/{project.pk}", token=token, json={"name": "x"}).status == 200
    owner = Member.objects.get(user=alice)
    for path, body in (("change", {"role": "viewer"}), ("delete", {"post": "yes"})):
        refused = console.post(f"/admin/projects/member/{owner.pk}/{path}/", body, follow=True)
        assert "must have at least one owner" in refused.content.decode()
        owner.refresh_from_db()
        assert owner.role == "owner"
    assert console.post(f"/admin/projects/member/{member.pk}/delete/", {"post": "yes"}).status_code == 302
    assert api.get(f"/v1/projects/{project.pk}", token=token).status == 404


@pytest.mark.exhaustive
def test_pages_opened_long_ago_overwrite_nothing_that_changed_since(console: Client, alice: User, bob: User) -> None:
    """Every form of the console sends all its fields; concurrent changes by other users are reported."""
    project = make_project(alice)
    added = services.add_member(project.pk, email=bob.email, role="developer", actor=audit.SYSTEM)
    pages = {
        "name": f"/admin/projects/project/{project.pk}/change/",
        "role": f"/admin/projects/member/{added.pk}/change/",
    }
    opened = {field: form_values(page(console, path), field) for field, path in pages.items()}
    services.change_project(project.pk, plan="team", actor=audit.SYSTEM)
    services.change_member(project.pk, bob.pk, role="viewer", actor=audit.SYSTEM)
    before = AuditEntry.objects.count()
    wanted = {"name": "Renamed", "role": "owner"}
    said = {"name": "from “free” to “team”", "role": "from “developer” to “viewer”"}
    for field, path in pages.items():
        answer = console.post(path, opened[field] | {field: wanted[field]})
        assert answer.status_code == 200, (field, answer.status_code)
        assert said[field] in answer.content.decode(), field
        if field == "name":  # the form is below all that the project has
            assert "Nothing was saved. <a " in answer.content.decode()
            assert 'href="#project_form"' in answer.content.decode()
            assert 'id="project_form"' in answer.content.decode()
        opened[field] = form_values(answer.content.decode(), field)
        assert opened[field][field] == wanted[field], "what was typed is still there"
    assert AuditEntry.objects.count() == before
    for field, path in pages.items():
        assert console.post(path, opened[field]).status_code == 302, field
    project.refresh_from_db()
    assert (project.name, project.plan) == ("Renamed", "team")
    assert Member.objects.get(user=bob).role == "owner"


def test_a_form_that_is_sent_as_it_was_opened_changes_nothing(console: Client, alice: User) -> None:
    project = make_project(alice)
    before = AuditEntry.objects.count()
    address = f"/admin/projects/project/{project.pk}/change/"
    assert console.post(address, form_values(page(console, address), "name")).status_code == 302
    assert AuditEntry.objects.count() == before


def test_an_environment_is_shown_and_changed_in_its_own_console(console: Client, alice: User) -> None:
    environment = environment_of(make_project(alice))
    address = f"/admin/projects/environment/{environment.pk}/change/"
    assert f"/console/{environment.project_id}/{environment.pk}/" in page(console, address)
    assert console.post(address, {"allowed_origins": "https://c.example"}).status_code == 403


def test_a_deleted_project_can_be_looked_at_but_not_changed(console: Client, alice: User) -> None:
    project = make_project(alice)
    Project.objects.filter(pk=project.pk).update(deleted_at="2026-01-01T00:00:00Z")
    assert "being deleted" in page(console, "/admin/projects/project/")
    assert page(console, f"/admin/projects/project/{project.pk}/change/")
    assert console.get(f"/admin/projects/project/{project.pk}/delete/").status_code == 403
    assert "Deletions unfinished" in page(console, "/admin/")


def test_the_first_page_counts_in_a_bounded_number_of_queries(console: Client, alice: User, bob: User) -> None:
    for number in range(3):
        make_project(alice, f"A{number}", region="eu-west-1", plan="pro")
    services.delete_project(make_project(bob).pk, actor=audit.SYSTEM)
    Environment.objects.filter(pk=Environment.objects.first().pk).update(status="failed")  # type: ignore[union-attr]
    key_for(production := Environment.objects.live().latest("pk").pk, "rows:read")
    key_for(production, "rows:write")
    ServerKey.objects.filter(scopes=["rows:write"]).update(expires_at=Now())
    rollups.measure_control()
    with CaptureQueriesContext(connections["default"]) as queries:
        shown = page(console, "/admin/")
    assert len(queries) <= 20
    assert "Failed environments <span>1<" in re.sub(r"\s+", " ", shown)
    assert "project.deleted" in shown
    row = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", shown))
    assert "Live keys 1 " in row, "one of the two has expired"
    assert "eu-west-1 0 3 0 3" in row
    assert "us-east-1 0 0 0 0" in row


def test_every_list_costs_the_same_number_of_queries_however_long(console: Client, alice: User) -> None:
    def queries(path: str) -> int:
        with CaptureQueriesContext(connections["default"]) as seen:
            page(console, path)
        return len(seen)

    paths = ("/admin/projects/project/", "/admin/projects/environment/", "/admin/projects/member/")
    make_project(alice)
    few = [queries(path) for path in paths]
    for number in range(5):
        make_project(
            accounts.create_user(pool_id=None, email=f"o{number}@example.com", password=None, actor=audit.SYSTEM)
        )
    assert [queries(path) for path in paths] == few
