"""Staff roles: which roles enter the console and what each may do there, over every URL of the console."""

import re
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Group
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from accounts import audit
from accounts.console.base import MAX_AT_ONCE
from accounts.keys import permissions
from accounts.models import AuditEntry, ServerKey, Session, SigningKey, User
from accounts.staff import roles
from accounts.staff.roles import StaffRole
from accounts.users import service as user_service
from platform_site.http.errors import Conflict, ValidationFailed
from platform_site.models import EndpointMetric
from projects.models import Environment, Member
from tests.accounts.conftest import session_of
from tests.support.html_forms import form_values

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__")]

OPEN_TO_ALL = {"/admin/login/", "/admin/login/code/", "/admin/login/forgotten/", "/admin/logout/"}


@pytest.fixture
def hire(make_user: Callable[..., User]) -> Callable[[StaffRole], User]:
    def make(role: StaffRole) -> User:
        user = make_user(f"{role.value}-person")
        return roles.set_role(user, role, actor=audit.SYSTEM)

    return make


def browser_of(user: User) -> Client:
    browser = Client()
    browser.force_login(user)
    return browser


@pytest.fixture
def things(una: User, production: Environment, make_key: Callable[..., tuple[ServerKey, str]]) -> dict[str, str]:
    """An id for each model of the control database that has pages, to fill into URLs."""
    make_key(production)
    session_of(una)
    made = {
        "accounts_user": una.pk,
        "accounts_session": Session.objects.get().pk,
        "accounts_serverkey": ServerKey.objects.get().pk,
        "accounts_signingkey": SigningKey.objects.get().pk,
        "accounts_auditentry": AuditEntry.objects.all()[0].pk,
        "projects_project": production.project_id,
        "projects_environment": production.pk,
        "projects_member": Member.objects.get().pk,
    }
    return made


def addresses(things: dict[str, str]) -> Iterator[tuple[str, str]]:
    """(name, path) of every URL under /admin/; ids of things that do not exist where there are none."""

    def walk(patterns: Any, prefix: str, namespace: str) -> Iterator[tuple[str, str]]:
        for each in patterns:
            if isinstance(each, URLResolver):
                inner = f"{each.namespace}:" if each.namespace else namespace
                yield from walk(each.url_patterns, prefix + str(each.pattern), inner)
            elif isinstance(each, URLPattern) and each.name and (prefix + str(each.pattern)).startswith("admin/"):
                wanted = each.pattern.regex.groupindex if hasattr(each.pattern, "regex") else {}
                known = [pk for model, pk in things.items() if each.name.startswith(model)]
                values = {name: quote(known[0] if known else "none_00000000000000000000000000") for name in wanted}
                if not set(values) - {"object_id", "form_url"}:
                    yield each.name, reverse(f"{namespace}{each.name}", kwargs=values)

    yield from walk(get_resolver().url_patterns, "", "")


def test_every_address_of_the_console_is_walked(things: dict[str, str]) -> None:
    found = dict(addresses(things))
    for model in admin.site._registry:
        assert f"{model._meta.app_label}_{model._meta.model_name}_changelist" in found
    assert {"code", "security", "index", "accounts_user_disable_user"} <= set(found)


def test_console_redirects_everyone_but_staff_to_sign_in(alice: User, things: dict[str, str]) -> None:
    for browser in (Client(), browser_of(alice)):
        for name, path in addresses(things):
            if path in OPEN_TO_ALL:
                continue
            for answer in (browser.get(path), browser.post(path)):
                assert answer.status_code in (302, 404, 405), (name, path, answer.status_code)
                if answer.status_code == 302:
                    assert answer.headers["Location"].startswith("/admin/login/"), (name, answer.headers["Location"])
    assert not AuditEntry.objects.filter(actor_kind="staff").exists()


def test_support_sees_every_list_and_page_and_changes_nothing(
    hire: Callable[[StaffRole], User], things: dict[str, str]
) -> None:
    support = hire(StaffRole.SUPPORT)
    browser = browser_of(support)
    before = AuditEntry.objects.count()
    for name, path in addresses(things):
        if path in OPEN_TO_ALL or path.startswith("/admin/password_change") or name == "security":
            continue
        shown = browser.get(path)
        if name.endswith("_changelist") or name == "index":
            assert shown.status_code == 200, (name, shown.status_code)
        elif name.endswith(("_add", "_delete")):
            assert shown.status_code in (403, 302, 404), (name, shown.status_code)
        elif name.endswith("_change") and name.removesuffix("_change") in things:
            assert shown.status_code == 200, (name, shown.status_code)
        assert shown.status_code < 500, (name, path)
        sent = browser.post(path, {"_form_submitted": "True", "post": "yes", "apply": "1", "role": "superuser"})
        assert sent.status_code in (200, 302, 403, 404, 405, 409), (name, sent.status_code)
    for model, action in (("user", "disable_users"), ("session", "end_sessions"), ("serverkey", "revoke_keys")):
        body = {"action": action, "_selected_action": [things[f"accounts_{model}"]], "confirmed": "yes"}
        browser.post(reverse(f"admin:accounts_{model}_changelist"), body)
    assert AuditEntry.objects.count() == before
    assert User.objects.get(pk=support.pk).is_superuser is False
    assert ServerKey.objects.get().revoked_at is None


def test_the_address_of_a_list_asks_of_nothing_but_its_filters(
    hire: Callable[[StaffRole], User], things: dict[str, str]
) -> None:
    """Else support reads a hash from its beginning: Django lets a URL filter by any column."""
    browser = browser_of(hire(StaffRole.SUPPORT))
    asked = set()
    for model, page in admin.site._registry.items():
        path = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
        filtered = {str(each[0] if isinstance(each, tuple) else each).partition("__")[0] for each in page.list_filter}
        linked = {"route"} if model is EndpointMetric else set()
        for name in {field.name for field in model._meta.get_fields()} - filtered - linked | {"pk"}:
            for lookup in ("startswith=a", "gt=a", "isnull=False"):
                assert browser.get(f"{path}?{name}__{lookup}").status_code == 400, (model, name, lookup)
            asked.add(f"{model._meta.model_name}.{name}")
    assert {"user.password", "session.refresh_hash", "serverkey.secret_hash", "accountemail.details"} <= asked
    assert {"signingkey.sealed_private", "identityprovider.sealed_client_secret"} <= asked
    users = reverse("admin:accounts_user_changelist")
    assert browser.get(f"{users}?sessions__refresh_hash__gt=a").status_code == 400
    assert browser.get(f"{users}?is_staff__exact=1&disabled_at__isempty=1").status_code == 200


def test_invalid_list_or_search_parameters_are_client_errors(
    hire: Callable[[StaffRole], User],
) -> None:
    browser = browser_of(hire(StaffRole.SUPPORT))
    browser.raise_request_exception = False
    for model, filtered in (("projects_project", "region__exact"), ("accounts_auditentry", "actor_kind"),
                            ("platform_site_regionmetric", "region__exact"), ("accounts_user", "q")):  # fmt: skip
        path = reverse(f"admin:{model}_changelist")
        assert browser.get(f"{path}?{filtered}=%00").status_code == 400, model
        assert browser.post(path, {"action": "x", "_selected_action": "\0"}).status_code == 400, model
    search = reverse("admin:search")
    assert "Projects" in browser.get(f"{search}?s=proj").content.decode()
    assert browser.get(f"{search}?s=proj&page=1").status_code == 200
    for page in ("abc", "0", "-1", "99", "9" * 30, "1.5", "%00"):
        assert browser.get(f"{search}?s=proj&page={page}").status_code == 404, page
    assert Client().get(f"{search}?s=proj").status_code == 302


def test_an_operator_acts_and_gives_no_roles(
    hire: Callable[[StaffRole], User], make_user: Callable[..., User], things: dict[str, str], una: User
) -> None:
    operator = hire(StaffRole.OPERATOR)
    boss = make_user("boss", is_staff=True)
    browser = browser_of(operator)
    for model in ("projects_project", "projects_member"):
        assert browser.get(reverse(f"admin:{model}_add")).status_code == 200, model
    assert browser.get(reverse("admin:accounts_serverkey_add")).status_code == 403, "keys are made in the console"
    disable = reverse("admin:accounts_user_disable_user", args=[quote(una.pk)])
    assert browser.get(disable).status_code == 200
    assert browser.post(disable, {"_form_submitted": "True"}).status_code == 200
    assert User.objects.get(pk=una.pk).disabled_at is not None
    for action in ("change_staff_role", "reset_second_factor"):
        path = reverse(f"admin:accounts_user_{action}", args=[quote(operator.pk)])
        assert browser.get(path).status_code == 403
        assert browser.post(path, {"_form_submitted": "True", "role": "superuser"}).status_code == 403
    # Else an operator could lock every superuser out.
    path = reverse("admin:accounts_user_disable_user", args=[quote(boss.pk)])
    browser.post(path, {"_form_submitted": "True"})
    assert "only a superuser" in browser.get(reverse("admin:index")).content.decode()
    assert User.objects.get(pk=boss.pk).disabled_at is None


def test_operators_revoke_no_sessions_and_keys_of_other_staff(
    hire: Callable[[StaffRole], User],
    make_user: Callable[..., User],
    things: dict[str, str],
) -> None:
    operator, boss = hire(StaffRole.OPERATOR), make_user("boss", is_staff=True)
    browser = browser_of(operator)

    def make_account_key(user: User) -> None:
        authority = permissions.operators(account_id=user.pk)
        user_service.issue_key(name="Key", scopes=["projects:read"], authority=authority, actor=audit.SYSTEM)

    for model, one, many, make in (
        (Session, "end_session", "end_sessions", session_of),
        (ServerKey, "revoke_one_key", "revoke_keys", make_account_key),
    ):
        make(boss)
        make(operator)
        name = f"accounts_{model._meta.model_name}"
        for record in model._default_manager.all():
            path = reverse(f"admin:{name}_{one}", args=[quote(record.pk)])
            assert browser.post(path, {"_form_submitted": "True"}).status_code == 200
        (live,) = model._default_manager.filter(revoked_at=None)
        assert (live.user_id if isinstance(live, Session) else live.account_id) == boss.pk
        form = {"action": many, "_selected_action": [live.pk], "confirmed": "yes"}
        for person, left in ((operator, 1), (boss, 0)):
            browser_of(person).post(reverse(f"admin:{name}_changelist"), form)
            assert model._default_manager.filter(revoked_at=None).count() == left


def test_operators_give_no_staff_a_members_access(
    hire: Callable[[StaffRole], User], make_user: Callable[..., User], production: Environment
) -> None:
    """For that there are grants: for an hour, with a reason."""
    operator, boss, member = hire(StaffRole.OPERATOR), make_user("boss", is_staff=True), make_user("carol")
    add, project = reverse("admin:projects_member_add"), production.project

    def added(by: User, who: User) -> bool:
        form = {"project_id": project.pk, "email": who.email, "role": "viewer"}
        browser_of(by).post(add, form)
        return project.memberships.filter(user=who).exists()

    assert [added(operator, who) for who in (operator, boss, member)] == [False, False, True]
    assert added(boss, operator)
    path = reverse("admin:projects_member_change", args=[project.memberships.get(user=operator).pk])
    for by, role in ((operator, "viewer"), (boss, "owner")):
        browser_of(by).post(path, {"role": "owner"})
        assert project.memberships.get(user=operator).role == role


def test_user_page_hides_staff_fields_and_account_page_hides_rule_fields(
    hire: Callable[[StaffRole], User], una: User, alice: User
) -> None:
    browser = browser_of(hire(StaffRole.SUPPORT))

    def shown(user: User) -> set[str]:
        page = browser.get(reverse("admin:accounts_user_change", args=[quote(user.pk)])).content.decode()
        labels = {label.strip() for label in re.findall(r"<label[^>]*>([^<]+)", page)}
        return labels & {"Staff role", "Second factor", "Role", "Claims", "Email"}

    assert shown(una) == {"Role", "Claims", "Email"}
    assert shown(alice) == {"Staff role", "Second factor", "Email"}


def test_signing_a_user_out_also_ends_console_sessions(
    hire: Callable[[StaffRole], User], make_user: Callable[..., User], una: User
) -> None:
    """A laptop was stolen: the button that a colleague presses says that all sessions die."""
    boss, operator = make_user("boss", is_staff=True), hire(StaffRole.OPERATOR)
    bosss, stolen, other = browser_of(boss), browser_of(operator), browser_of(hire(StaffRole.SUPPORT))
    users = reverse("admin:accounts_user_changelist")
    for one in (operator, boss):
        path = reverse("admin:accounts_user_sign_user_out", args=[quote(one.pk)])
        assert bosss.post(path, {"_form_submitted": "True"}).status_code == 200
        assert [browser.get(users).status_code for browser in (stolen, bosss, other)] == [302, 200, 200]
    entry = AuditEntry.objects.get(action="console.signed_out", target_id=operator.pk)
    assert (entry.actor_id, entry.detail) == (boss.pk, {"by": "staff", "sessions": 1})
    again = browser_of(operator)
    action = {"action": "sign_users_out", "_selected_action": [una.pk, operator.pk], "confirmed": "yes"}
    assert bosss.post(users, action).status_code == 302
    assert again.get(users).status_code == 302


def test_a_superuser_gives_roles_and_they_hold_with_the_next_click(make_user: Callable[..., User], alice: User) -> None:
    boss, browser_of_alice = make_user("boss", is_staff=True), browser_of(alice)
    browser = browser_of(boss)
    path = reverse("admin:accounts_user_change_staff_role", args=[quote(alice.pk)])
    users = reverse("admin:accounts_user_changelist")
    for role, sees in (("support", 200), ("operator", 200), ("none", 302)):
        before = roles.role_of(User.objects.get(pk=alice.pk)) or "none"
        opened = form_values(browser.get(path).content.decode(), "role")
        assert opened["role"] == before, "the dialog begins with the current values, not with removing them"
        answer = browser.post(path, {"_form_submitted": "True", "role": role})
        assert answer.status_code == 200, answer.content.decode()
        assert roles.role_of(User.objects.get(pk=alice.pk)) == (None if role == "none" else role)
        assert browser_of_alice.get(users).status_code == sees, role
    changes = AuditEntry.objects.filter(action="user.staff_role_changed").order_by("at", "id")
    assert [(each.actor_id, each.detail["before"], each.detail["after"]) for each in changes] == [
        (boss.pk, None, "support"), (boss.pk, "support", "operator"), (boss.pk, "operator", None),
    ]  # fmt: skip
    assert browser.post(path, {"_form_submitted": "True", "role": "emperor"}).status_code in (200, 422)
    assert roles.role_of(User.objects.get(pk=alice.pk)) is None


def test_nobody_changes_their_own_role_and_one_superuser_stays(make_user: Callable[..., User], una: User) -> None:
    boss = make_user("boss", is_staff=True)
    with pytest.raises(ValidationFailed):
        roles.set_role(boss, None, actor=audit.Actor.staff(boss))
    with pytest.raises(Conflict):
        roles.set_role(boss, StaffRole.SUPPORT, actor=audit.SYSTEM)
    with pytest.raises(ValidationFailed):
        roles.set_role(una, StaffRole.SUPPORT, actor=audit.SYSTEM)
    assert roles.role_of(User.objects.get(pk=boss.pk)) == StaffRole.SUPERUSER
    assert not AuditEntry.objects.filter(action="user.staff_role_changed").exists()
    make_user("second", is_staff=True)
    roles.set_role(boss, StaffRole.SUPPORT, actor=audit.SYSTEM)
    assert roles.role_of(User.objects.get(pk=boss.pk)) == StaffRole.SUPPORT


def test_the_last_superuser_is_neither_disabled_nor_deleted(make_user: Callable[..., User]) -> None:
    boss, away = make_user("boss", is_staff=True), make_user("away", is_staff=True)
    user_service.change_user(away, actor=audit.SYSTEM, is_disabled=True)
    button = reverse("admin:accounts_user_disable_user", args=[quote(boss.pk)])
    browser_of(boss).post(button, {"_form_submitted": "True"})
    assert User.objects.get(pk=boss.pk).disabled_at is None
    for verb in (
        lambda: user_service.change_user(boss, actor=audit.SYSTEM, is_disabled=True),
        lambda: user_service.delete_user(boss, actor=audit.SYSTEM),
    ):
        with pytest.raises(Conflict, match="last superuser"):
            verb()
    user_service.change_user(away, actor=audit.SYSTEM, is_disabled=False)
    user_service.change_user(boss, actor=audit.SYSTEM, is_disabled=True)
    assert User.objects.get(pk=boss.pk).disabled_at is not None


def test_the_command_sets_and_takes_roles(alice: User) -> None:
    call_command("set_staff_role", alice.email, "operator", stderr=StringIO())
    assert roles.role_of(User.objects.get(pk=alice.pk)) == StaffRole.OPERATOR
    call_command("set_staff_role", alice.email, "none", stderr=StringIO())
    assert roles.role_of(User.objects.get(pk=alice.pk)) is None
    with pytest.raises(CommandError):
        call_command("set_staff_role", "nobody@example.com", "support")
    with pytest.raises(CommandError):
        call_command("set_staff_role", alice.email, "emperor")


def test_the_groups_grow_with_the_console(hire: Callable[[StaffRole], User]) -> None:
    support = Group.objects.get(name="support")
    held = set(support.permissions.values_list("codename", flat=True))
    assert held == {f"view_{model._meta.model_name}" for model in admin.site._registry}
    support.permissions.clear()
    roles.sync_groups()
    assert set(support.permissions.values_list("codename", flat=True)) == held


def test_a_lists_action_asks_before_it_acts(make_user: Callable[..., User], una: User) -> None:
    browser = browser_of(make_user("boss", is_staff=True))
    users = reverse("admin:accounts_user_changelist")
    asked = browser.post(users, {"action": "disable_users", "_selected_action": [una.pk]})
    page = asked.content.decode()
    assert "Are you sure?" in page
    assert una.pk in page
    assert User.objects.get(pk=una.pk).disabled_at is None
    browser.post(users, {"action": "disable_users", "_selected_action": [una.pk], "confirmed": "yes"})
    assert User.objects.get(pk=una.pk).disabled_at is not None


@pytest.mark.parametrize("confirmed", [{}, {"confirmed": "yes"}])
@pytest.mark.parametrize("across", ["0", "1"])
def test_no_step_of_a_lists_action_takes_more_than_it_says(
    make_user: Callable[..., User], una: User, confirmed: dict[str, str], across: str
) -> None:
    """Also where its form was written by hand, or all pages of the list were marked."""
    browser = browser_of(make_user("boss", is_staff=True))
    many = [User(email=f"{number}@many.example", environment_id=una.environment_id) for number in range(MAX_AT_ONCE)]
    User.objects.bulk_create(many)
    selected = [una.pk, *(user.pk for user in many)]
    users = reverse("admin:accounts_user_changelist") + "?pool=applications"
    actions = ["disable_users", "sign_users_out", *(["enable_users"] if confirmed else [])]
    User.objects.filter(pk=una.pk).update(disabled_at=Now())
    for action in actions:
        body = {"action": action, "_selected_action": selected, "select_across": across, "index": "0"} | confirmed
        assert f"Select {MAX_AT_ONCE} at most." in browser.post(users, body, follow=True).content.decode(), action
    assert User.objects.filter(pk__in=selected, disabled_at=None).count() == MAX_AT_ONCE
    assert not AuditEntry.objects.filter(target_id__in=selected).exclude(action="user.created").exists()
    if confirmed:
        browser.post(users, {"action": "disable_users", "_selected_action": selected[1:]} | confirmed)
        assert not User.objects.filter(pk__in=selected, disabled_at=None).exists()
