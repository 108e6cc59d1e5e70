"""Every URL of the developer console, with every form of its page: for people of other projects, for objects of another
environment, and for members who may only read."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from accounts.audit import SYSTEM
from accounts.models import AuditEntry, ServerKey, Session, User
from accounts.oauth import providers
from functions.models import Run
from platform_site.config import current
from platform_site.developer_console import frame
from platform_site.developer_console.urls import environment_urlpatterns
from projects.directory.environments import environment_ref
from rows.tasks import flush_audit_outbox
from tests.developer_console.conftest import DOCUMENT, Desk, desk_at
from tests.developer_console.conftest import desk_of as desk_of  # a fixture
from tests.developer_console.conftest import tracker as tracker  # a fixture
from tests.rows.conftest import Tracker
from tests.rows.conftest import make_tracker as make_tracker  # a fixture
from webhooks.models import Webhook

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")
SOURCE = "export default () => 'marked source'"
ROUTES = [str(each.pattern) for each in environment_urlpatterns]
OF_THE_PERSON = {"sessions"}
"""Its forms are about the account of the person, not about the project."""


@dataclass
class Scene:
    desk: Desk
    objects: dict[str, str]

    def path(self, route: str) -> str:
        return re.sub(r"<str:(\w+)>", lambda found: self.objects[found[1]], route)


@pytest.fixture
def scene(tracker: Tracker) -> Scene:
    """A project with one of each object that a URL can name."""
    desk = desk_at(tracker)
    desk.post("functions/", {"action": "new", "name": "marked", "source": SOURCE})
    desk.post("functions/marked", {"action": "run", "input": "{}"})
    desk.post("webhooks/", {"action": "new", "url": "https://marked.example/", "events": "tasks.*", "name": "hook"})
    webhook = Webhook.objects.using(tracker.project.cluster).get()
    desk.post(f"webhooks/{webhook.pk}", {"action": "test"})
    row = desk.browser.post(desk.url("tables/tasks/rows"), {"title": "marked row"}, "application/json").json()
    endpoints = {name: f"https://id.example/{name}" for name in ("authorize", "token", "me")}
    provider = providers.add(
        tracker.environment_id, actor=SYSTEM, name="marked", client_id="marked", client_secret="s" * 20,
        authorization_endpoint=endpoints["authorize"], token_endpoint=endpoints["token"],
        userinfo_endpoint=endpoints["me"],
    )  # fmt: skip
    objects = {
        "table": "tasks", "row_id": row["id"], "key": "owner_id", "name": "marked", "webhook_id": webhook.pk,
        "run_id": Run.objects.using(tracker.project.cluster).get().pk, "provider_id": provider.pk,
        "user_id": tracker.users["alice"], "delivery_id": "dlv_00000000000000000000000000",
    }  # fmt: skip
    return Scene(desk, objects)


@pytest.fixture
def forms(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """By URL pattern, the names of its page's forms, or of one without a name."""
    found: dict[str, list[str]] = {}
    submit = frame.Console.submit

    def noting(console: frame.Console, actions: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
        match = console.request.resolver_match
        assert match is not None
        found[match.route.partition("/<str:environment_id>/")[2]] = [*actions]
        return submit(console, actions, arguments)

    monkeypatch.setattr(frame.Console, "submit", noting)
    for route in ROUTES:
        scene.desk.post(scene.path(route), {"action": "none"})
    assert sum(map(len, found.values())) >= 40, "the pages' forms are found"
    return {route: found.get(route, [""]) for route in ROUTES}


def test_people_of_other_projects_find_no_url(scene: Scene, make_tracker: Any) -> None:
    other = desk_at(make_tracker(DOCUMENT, "Other")).browser
    for route in ROUTES:
        url = scene.desk.url(scene.path(route))
        for answer in (other.get(url), other.post(url, {"action": "delete"})):
            assert answer.status_code in (404, 405), url
            assert b"marked" not in answer.content.replace(url.encode(), b""), url


@pytest.mark.exhaustive
def test_ids_of_another_project_show_and_change_nothing_of_it(
    scene: Scene,
    forms: dict[str, list[str]],
    tracker: Tracker,
    make_tracker: Any,
) -> None:
    other = desk_at(make_tracker(DOCUMENT, "Other"))
    other.post("functions/", {"action": "new", "name": "marked", "source": "export default () => 1"})
    before = state_of(tracker)
    foreign = {name: tracker.environment_id for name in ("branch", "from", "into", "environment")}
    foreign |= {
        "key": ServerKey.objects.filter(environment_id=tracker.environment_id).values_list("pk", flat=True)[0],
        "session": Session.objects.filter(user__email="owner@tracker.example").values_list("pk", flat=True)[0],
        "member": User.objects.get(email="viewer@tracker.example").pk,
        "delivery": scene.objects["delivery_id"],
        "confirm": "production",
        "role": "viewer",
    }
    for route, names in forms.items():
        path = scene.path(route)
        answers = [other.get(path), *(other.post(path, {**foreign, "action": name}) for name in names)]
        for answer in answers:
            assert answer.status_code < 500, path
            content = b"" if answer.streaming else answer.content
            for mark in (b"marked row", b"marked source", b"marked.example", b"@tracker.example"):
                assert mark not in content, path
    assert state_of(tracker) == before


@pytest.mark.exhaustive
def test_members_who_may_only_read_change_nothing_by_any_form(
    scene: Scene,
    forms: dict[str, list[str]],
    tracker: Tracker,
    desk_of: Callable[[str], Desk],
) -> None:
    viewer = desk_of("viewer")
    before = state_of(tracker)
    given = {
        "name": "overwritten", "role": "owner", "email": "new@elsewhere.example", "confirm": "marked",
        "from": tracker.environment_id, "branch": tracker.environment_id, "data": "none", "document": '{"tables": {}}',
        "url": "https://overwritten.example/", "events": "tasks.*",
    }  # fmt: skip
    for route, names in forms.items():
        path = scene.path(route)
        for name in names if route not in OF_THE_PERSON else ():
            assert viewer.post(path, {**given, "action": name}).status_code < 500, (route, name)
        viewer.browser.delete(viewer.url(path))
        viewer.browser.patch(viewer.url(path), {"title": "overwritten"}, "application/json")
        viewer.browser.post(viewer.url(path), {"title": "overwritten"}, "application/json")
    assert state_of(tracker) == before
    shown = scene.desk.get("tables/tasks").content.decode()
    assert "marked row" in shown
    assert "overwritten" not in shown


def state_of(tracker: Tracker) -> Any:
    """The configuration of an environment, and how many changes its project has seen."""
    environment = environment_ref(tracker.environment_id)
    assert environment is not None
    flush_audit_outbox(tracker.project.cluster)
    entries = AuditEntry.objects.filter(project_id=tracker.project.pk) | AuditEntry.objects.filter(
        environment_id=tracker.environment_id
    )
    return current.read(environment, current.PARTS), entries.count()
