"""Home: keys by preset, code, what a viewer and a suspended project get, and names that are no markup."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from accounts import audit
from accounts.models import AuditEntry, ServerKey
from platform_site.developer_cli import key_presets
from projects import services
from tests.developer_console.conftest import DOCUMENT, Desk, environment_of, member, sign_in
from tests.rows.conftest import Tracker
from tests.support.client import Api

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(transaction=True, databases="__all__")]


@pytest.mark.parametrize(
    ("preset", "mark", "allowed"), [("browser", "pk_", 404), ("server", "sk_", 200), ("ci", "sk_", 200)]
)
def test_a_key_of_each_preset_is_shown_once_and_works(
    desk: Desk, api: Api, preset: str, mark: str, allowed: int
) -> None:
    page = desk.post("", {"action": "create-key", "preset": preset})
    assert page.status_code == 200
    assert "no-store" in page["Cache-Control"]
    found = re.search(rf'<code id="new-key">({mark}[0-9A-Za-z]+)</code>', page.content.decode())
    assert found is not None
    assert api.get("/v1/rows/tasks", token=found[1]).status == allowed
    made = ServerKey.objects.filter(environment_id=desk.environment_id).latest("created_at")
    assert sorted(made.scopes) == sorted(key_presets.SCOPES[preset]), "as the command's presets"
    assert AuditEntry.objects.filter(action="key.issued", actor_id=member_id(desk)).exists()
    assert found[1] not in desk.get().content.decode()


def test_another_environment_opens_at_the_same_page(tracker: Tracker, desk: Desk) -> None:
    other = environment_of(tracker.project, "development").pk
    elsewhere = Desk(desk.browser, desk.project_id, other)
    for path, target in (
        ("logs/audit", "logs/audit"),
        ("tables/tasks", "tables/?table=tasks"),
        (f"auth/users/{tracker.users['alice']}", "auth/"),
        ("", ""),
    ):
        page = desk.get(path).content.decode()
        assert f'<a href="{elsewhere.url(target)}"' in page, path
        assert re.search(r"<title>[^<]+ · production of [^<]+ · Console</title>", page)
        assert '<bdi class="tag">production</bdi>' in page.partition("</summary>")[0]
        assert '<bdi class="tag">' not in elsewhere.get(target).content.decode().partition("</summary>")[0]
    assert desk.get("tables/?table=tasks")["Location"] == desk.url("tables/tasks")
    assert desk.get("tables/?table=none")["Location"] == desk.url("tables/tasks")


def test_a_key_has_a_name_and_an_expiry(desk: Desk) -> None:
    values = {"action": "create-key", "preset": "server", "name": "Billing", "expires": "30"}
    assert desk.post("", values).status_code == 200
    made = ServerKey.objects.filter(environment_id=desk.environment_id).latest("created_at")
    assert made.name == "Billing"
    assert made.expires_at is not None
    assert timedelta(days=29) < made.expires_at - timezone.now() <= timedelta(days=30)
    assert f"{made.expires_at:%Y-%m-%d}" in desk.get().content.decode()
    assert desk.post("", values | {"expires": "forever"}).status_code == 422


def member_id(desk: Desk) -> str:
    return str(ServerKey.objects.filter(environment_id=desk.environment_id).latest("created_at").created_by_id)


def test_a_browser_key_says_what_it_opens(tracker: Tracker, desk: Desk) -> None:
    assert "nothing yet" in desk.post("", {"action": "create-key", "preset": "browser"}).content.decode()
    document = {**DOCUMENT, "tables": {**DOCUMENT["tables"]}}
    document["tables"]["tasks"] = {**document["tables"]["tasks"], "rules": {"anonymous": {"read": {}}}}
    tracker.apply(document)
    page = desk.post("", {"action": "create-key", "preset": "browser"}).content.decode()
    assert "table <code>tasks</code>: read" in page


def test_the_code_names_the_first_table_and_the_new_key(desk: Desk) -> None:
    page = desk.post("", {"action": "create-key", "preset": "server"}).content.decode()
    assert page.count("/v1/rows/tasks") + page.count("&quot;/rows/tasks&quot;") == 2
    assert re.findall("YOUR_[A-Z]+_KEY", page) == ["YOUR_BROWSER_KEY"], "a secret is not in code for browsers"
    page = desk.post("", {"action": "create-key", "preset": "browser"}).content.decode()
    assert re.findall("YOUR_[A-Z]+_KEY", page) == ["YOUR_SERVER_KEY"] * 2
    page = desk.post("", {"action": "create-key", "preset": "ci"}).content.decode()
    assert len(re.findall("YOUR_[A-Z]+_KEY", page)) == 3, "it reads no rows"
    assert re.findall("YOUR_[A-Z]+_KEY", desk.get().content.decode()) == [
        "YOUR_SERVER_KEY", "YOUR_BROWSER_KEY", "YOUR_SERVER_KEY"
    ]  # fmt: skip


def test_a_viewer_is_shown_no_forms_and_gets_no_key(desk_of: Callable[[str], Desk]) -> None:
    viewer = desk_of("viewer")
    page = viewer.get().content.decode()
    assert "Only owners and developers" in page
    assert "New Server key" not in page
    before = ServerKey.objects.count()
    refused = viewer.post("", {"action": "create-key", "preset": "server"})
    assert refused.status_code == 403
    assert "Only owners and developers" in refused.content.decode()
    assert ServerKey.objects.count() == before


def test_a_suspended_project_says_so_and_why(tracker: Tracker, desk: Desk) -> None:
    services.suspend_project(tracker.project.pk, reason="The <b>bill</b> is open", actor=audit.SYSTEM)
    page = desk.get()
    assert page.status_code == 200
    assert "The &lt;b&gt;bill&lt;/b&gt; is open" in page.content.decode()
    assert desk.post("", {"action": "create-key", "preset": "server"}).status_code == 403


def test_names_are_text_and_isolated(tracker: Tracker, desk: Desk) -> None:
    name = '<script>alert("x")</script>\u202eevil'
    services.change_project(tracker.project.pk, name=name, plan=None, actor=audit.SYSTEM)
    page = desk.get().content.decode()
    assert "<script>alert" not in page
    assert "<bdi>&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;\u202eevil</bdi>" in page


def test_pages_have_no_inline_code_and_a_strict_policy(desk: Desk) -> None:
    page = desk.get()
    policy = page["Content-Security-Policy"]
    assert "'unsafe-inline'" not in policy
    assert "'unsafe-eval'" not in policy
    text = page.content.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert not re.search(r"\s(?:on\w+|style)=", text)


def test_an_account_without_a_project_creates_its_first(tracker: Tracker) -> None:
    from accounts.users import service as user_service
    from tests.developer_console.conftest import give_password

    newcomer = give_password(
        user_service.create_user(pool_id=None, email="new@x.example", password=None, name="", actor=audit.SYSTEM)
    )
    browser = sign_in(newcomer, Client())
    page = browser.get("/console/").content.decode()
    assert "New project" in page
    assert 'maxlength="64"' in page
    assert "Cancel" not in page
    refused = browser.post("/console/", {"name": "", "region": "us-east-1"})
    assert refused.status_code == 422
    assert 'id="new-name-problem"' in refused.content.decode()
    made = browser.post("/console/", {"name": "First", "region": "eu-west-1"})
    assert made.status_code == 302
    assert "First" in browser.get(made["Location"]).content.decode()
    assert "Cancel" in browser.get("/console/?new=1").content.decode()
    assert member(tracker.project, "owner")  # the other project is as it was


def test_the_console_opens_an_environment_that_has_tables(tracker: Tracker, desk: Desk) -> None:
    development = tracker.project.environments.get(name="development").pk
    assert desk.browser.get("/console/")["Location"] == desk.url()
    answer = tracker.api.put(
        "/v1/schema", json={"document": DOCUMENT}, token=tracker.tokens["owner"], environment=development
    )
    assert answer.status == 200
    assert development in desk.browser.get("/console/")["Location"], "development comes first"
    assert development in desk.browser.get(f"/console/{desk.project_id}")["Location"]
