"""Settings: members, keys, origins, usage, and the end of a project, each for those who may."""

from collections.abc import Callable
from html import unescape
from typing import Any

import pytest

from accounts.models import AuditEntry, ServerKey
from functions.models import Function, InboundEndpoint
from projects.models import Environment, Member, Project
from tests.developer_console.conftest import Desk, member
from tests.rows.conftest import Tracker

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def text_of(answer: Any) -> str:
    return unescape(answer.content.decode())


def roles(tracker: Tracker) -> dict[str, str]:
    return dict(Member.objects.filter(project=tracker.project).values_list("user__email", "role"))


def test_members_are_added_changed_and_removed(tracker: Tracker, desk: Desk) -> None:
    viewer = member(tracker.project, "viewer")
    changed = desk.post("settings", {"action": "change-role", "member": viewer.pk, "role": "developer"})
    assert "The role is changed." in text_of(changed)
    assert roles(tracker)[viewer.email] == "developer"
    assert "The member is removed." in text_of(desk.post("settings", {"action": "remove-member", "member": viewer.pk}))
    assert viewer.email not in roles(tracker)
    added = desk.post("settings", {"action": "add-member", "email": viewer.email, "role": "viewer"})
    assert "is a member now" in text_of(added)
    assert AuditEntry.objects.filter(action__startswith="member.", project_id=tracker.project.pk).count() == 3


def test_a_refused_member_stays_in_the_form_which_says_who_can_invite(desk: Desk) -> None:
    values = {"action": "add-member", "email": "new@x.example", "role": "viewer"}
    refused = text_of(desk.post("settings", values))
    assert "The operator can invite them: manage.py invite_user --platform EMAIL" in refused
    assert 'value="new@x.example"' in refused
    new_role = refused[refused.index('<select id="add-member-role"') :].partition("</select>")[0]
    assert '<option value="viewer" selected>viewer</option>' in new_role
    assert new_role.count("selected") == 1


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ({"action": "add-member", "email": "no address", "role": "viewer"}, 422),
        ({"action": "add-member", "email": "x@x.example", "role": "emperor"}, 422),
        ({"action": "change-role", "member": "usr_nobody", "role": "viewer"}, 404),
        ({"action": "remove-member", "member": "../../keys"}, 404),
        ({"action": "withdraw", "invitation": "inv_x"}, 404),
        ({"action": "revoke-key", "key": "key_x"}, 404),
        ({"action": "origins", "allowed_origins": "not an origin"}, 422),
        ({"action": "rename", "name": ""}, 422),
        ({"action": "delete", "confirm": "Other"}, 422),
        ({"action": "nothing"}, 400),
        ({}, 400),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(
    tracker: Tracker, desk: Desk, values: dict[str, str], status: int
) -> None:
    before = roles(tracker)
    answer = desk.post("settings", values)
    assert answer.status_code == status
    assert 'role="alert"' in text_of(answer)
    assert roles(tracker) == before
    assert Project.objects.get(pk=tracker.project.pk).name == "Tracker"


def test_the_last_owner_stays(tracker: Tracker, desk: Desk) -> None:
    owner = member(tracker.project, "owner")
    for values in ({"action": "change-role", "role": "viewer"}, {"action": "remove-member"}):
        assert desk.post("settings", {**values, "member": owner.pk}).status_code == 409
    assert roles(tracker)[owner.email] == "owner"


@pytest.mark.exhaustive
def test_a_viewer_may_leave_and_nothing_else(tracker: Tracker, desk_of: Callable[[str], Desk]) -> None:
    viewer, user, owner = desk_of("viewer"), member(tracker.project, "viewer"), member(tracker.project, "owner")
    page = text_of(viewer.get("settings"))
    assert "Danger zone" not in page
    assert "Add member" not in page
    for values in (
        {"action": "add-member", "email": "x@x.example", "role": "owner"},
        {"action": "change-role", "member": user.pk, "role": "owner"},
        {"action": "remove-member", "member": owner.pk},
        {"action": "origins", "allowed_origins": "https://evil.example"},
        {"action": "rename", "name": "Mine"},
        {"action": "delete", "confirm": "Tracker"},
        {"action": "revoke-key", "key": ServerKey.objects.first().pk},  # type: ignore[union-attr]
    ):
        assert viewer.post("settings", values).status_code in (403, 404), values
    left = viewer.post("settings", {"action": "remove-member", "member": user.pk})
    assert left["Location"] == "/console/"
    assert viewer.get("settings").status_code == 404


def test_origins_are_saved(tracker: Tracker, desk: Desk) -> None:
    answer = desk.post(
        "settings", {"action": "origins", "allowed_origins": "https://a.example\r\nhttps://b.example\r\n"}
    )
    assert answer.status_code == 200
    assert Environment.objects.get(pk=tracker.environment_id).allowed_origins == [
        "https://a.example",
        "https://b.example",
    ]


def test_a_key_is_revoked(tracker: Tracker, desk: Desk) -> None:
    desk.post("settings", {"action": "create-key", "preset": "server"})
    key = ServerKey.objects.filter(environment_id=tracker.environment_id).latest("created_at")
    assert key.pk in text_of(desk.get("settings"))
    function = Function.objects.using(tracker.project.cluster).create(
        environment_id=tracker.environment_id, name="due", active_version=1, last_version=1, timeout_ms=700, memory_mb=64,
        schedule="@daily", scheduled_kind="key", scheduled_id=key.pk,
    )  # fmt: skip
    InboundEndpoint.objects.using(tracker.project.cluster).create(
        function=function, token_hash=b"0", is_async=True, runs_as_kind="key", runs_as_id=key.pk
    )
    page = desk.get("settings").content.decode()
    assert "stop working at once, and so do the schedule of due, inbound endpoints of due." in page
    assert page.count("stop working at once") > page.count("and so do"), "other keys stop less"
    assert "The key is revoked." in text_of(desk.post("settings", {"action": "revoke-key", "key": key.pk}))
    assert key.pk not in text_of(desk.get("settings"))


def test_a_project_is_renamed_and_deleted_by_its_name(tracker: Tracker, desk: Desk) -> None:
    assert 'value="Renamed"' in text_of(desk.post("settings", {"action": "rename", "name": "Renamed"}))
    assert desk.post("settings", {"action": "delete", "confirm": "Tracker"}).status_code == 422
    assert Project.objects.filter(pk=tracker.project.pk).exists()
    gone = desk.post("settings", {"action": "delete", "confirm": "Renamed"})
    assert gone["Location"] == "/console/"
    assert desk.get("settings").status_code == 404
