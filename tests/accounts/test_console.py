"""The console's pages for users, sessions, keys and the audit log: what they show, what they hide, what their buttons
do. The browser is Django's client here; tests/console drives a real one."""

import secrets
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse

from accounts import audit
from accounts.console.base import url_of
from accounts.models import AuditEntry, ServerKey, Session, SigningKey, User
from accounts.tokens import signing_keys
from accounts.users import exchange_codes
from accounts.users import service as user_service
from projects.models import Environment
from tests.accounts.conftest import PASSWORD, SignedIn
from tests.support.client import Api
from tests.support.flush import flush_redis
from tests.support.html_forms import csrf

pytestmark = pytest.mark.django_db(databases="__all__")

PAGES = ["user", "session", "serverkey", "signingkey", "auditentry"]


def changelist(model: str) -> str:
    return reverse(f"admin:accounts_{model}_changelist")


def page_of(model: str, object_id: str) -> str:
    return url_of(f"accounts_{model}", object_id)


@pytest.fixture
def staff(make_user: Callable[..., User]) -> User:
    return make_user("sam", email=f"{secrets.token_hex(6)}@example.com", is_staff=True)


@pytest.fixture
def console(staff: User) -> Client:
    """Sam's browser, which checks CSRF as a real one must."""
    browser = Client(enforce_csrf_checks=True)
    assert enter(browser, staff.email, PASSWORD).status_code == 302
    return browser


def enter(browser: Client, email: str, password: str) -> Any:
    login = reverse("admin:login")
    return browser.post(
        login,
        {"username": email, "password": password, "csrfmiddlewaretoken": csrf(browser, login), "next": "/admin/"},
    )


def act(browser: Client, model: str, action: str, *ids: str) -> Any:
    path = changelist(model)
    body = {"action": action, "_selected_action": list(ids), "csrfmiddlewaretoken": csrf(browser, path)}
    body["confirmed"] = "yes"
    return browser.post(path, body, follow=True)


# ── Who comes in ──


def test_only_enabled_staff_of_the_platform_comes_in(alice: User, una: User, staff: User) -> None:
    tries = {alice.email: PASSWORD, una.email: PASSWORD, staff.email: "wrong", "nobody@example.com": PASSWORD}
    for email, password in tries.items():
        answer = enter(Client(enforce_csrf_checks=True), email, password)
        assert answer.status_code == 200, email
        assert "Please enter the correct" in answer.content.decode()
    assert enter(Client(enforce_csrf_checks=True), staff.email, PASSWORD).status_code == 302
    User.objects.filter(pk=staff.pk).update(disabled_at="2026-01-01T00:00:00Z")
    assert enter(Client(enforce_csrf_checks=True), staff.email, PASSWORD).status_code == 200


def test_a_disabled_member_of_staff_is_out_with_the_next_click(console: Client, staff: User) -> None:
    assert console.get(changelist("user")).status_code == 200
    User.objects.filter(pk=staff.pk).update(disabled_at="2026-01-01T00:00:00Z")
    assert console.get(changelist("user")).status_code == 302


def test_console_sign_ins_count_with_the_token_endpoint(api: Api, staff: User, settings: Any) -> None:
    settings.RATE_LIMIT_FACTOR = 1
    for attempt in range(3):
        flush_redis()  # the address has its own count, which earlier tests have raised
        email = f"{attempt}{secrets.token_hex(6)}@example.com"
        seen = [enter(Client(enforce_csrf_checks=True), email, "wrong").content.decode() for _ in range(12)]
        limited = ["Too many attempts" in page for page in seen]
        if limited == [False] * 10 + [True] * 2:
            body = {"grant_type": "password", "email": email, "password": "wrong"}
            assert api.post("/v1/auth/token", json=body).status == 429
            return
    pytest.fail("twelve tries in a minute were not limited to ten")


def test_every_page_needs_staff(alice: User) -> None:
    browser = Client()
    for model in PAGES:
        assert browser.get(changelist(model)).status_code == 302
    browser.force_login(alice)
    for model in PAGES:
        assert browser.get(changelist(model)).status_code == 302


def test_staff_change_their_own_password_and_their_sessions_end(
    api: Api, console: Client, staff: User, sign_in: Callable[..., SignedIn]
) -> None:
    one = sign_in(staff)
    code = exchange_codes.issue(
        staff, environment_id=None, redirect_uri="https://app.example.com/", code_challenge=None, method="oauth:google"
    )
    path = reverse("admin:password_change")
    body = {
        "old_password": PASSWORD,
        "new_password1": "another good one",
        "new_password2": "another good one",
        "csrfmiddlewaretoken": csrf(console, path),
    }
    assert console.post(path, body).status_code == 302
    assert console.get(changelist("user")).status_code == 200, "this browser stays"
    assert api.get("/v1/auth/me", token=one.access_token).status == 401
    assert api.post("/v1/auth/token", json={"grant_type": "authorization_code", "code": code}).error == "invalid_grant"
    entry = AuditEntry.objects.get(action="user.changed")
    assert (entry.actor_kind, entry.actor_id, entry.detail) == ("staff", staff.pk, {"fields": ["password"]})


# ── What pages show ──


@pytest.fixture
def world(
    una: User, production: Environment, sign_in: Callable[..., SignedIn], make_key: Callable[..., tuple[ServerKey, str]]
) -> dict[str, Any]:
    """One of each thing, and the secrets that belong to them."""
    one = sign_in(una)
    key, secret = make_key(production)
    return {
        "user": una,
        "session": Session.objects.get(),
        "serverkey": key,
        "signingkey": SigningKey.objects.get(),
        "auditentry": AuditEntry.objects.filter(action="key.issued").get(),
        "secrets": [one.access_token, one.refresh_token, secret],
    }


@pytest.mark.exhaustive
def test_lists_and_pages_show_no_secret_and_no_hash(console: Client, world: dict[str, Any]) -> None:
    hashes = [
        world["user"].password,
        bytes(Session.objects.get().refresh_hash).hex(),
        bytes(Session.objects.get().family_hash).hex(),
        bytes(world["serverkey"].secret_hash).hex(),
        bytes(world["signingkey"].sealed_private).hex(),
        repr(bytes(world["serverkey"].secret_hash))[2:20],
    ]
    for model in PAGES:
        for path in (changelist(model), page_of(model, world[model].pk)):
            answer = console.get(path)
            assert answer.status_code == 200, path
            page = answer.content.decode()
            assert str(world[model].pk) in page or path + quote(world[model].pk) in page, path
            for hidden in (*hashes, *world["secrets"]):
                assert hidden not in page, path
    page = console.get(page_of("user", world["user"].pk)).content.decode()
    assert "argon2" not in page


@pytest.mark.parametrize("model", PAGES)
def test_nothing_is_edited_or_deleted_by_hand(console: Client, world: dict[str, Any], model: str) -> None:
    path = page_of(model, world[model].pk)
    token = csrf(console, reverse("admin:index"))
    assert console.post(path, {"csrfmiddlewaretoken": token, "email": "x@example.com"}).status_code == 403
    delete = reverse(f"admin:accounts_{model}_delete", args=[quote(world[model].pk)])
    assert console.post(delete, {"csrfmiddlewaretoken": token, "post": "yes"}).status_code == 403
    if model != "serverkey":
        assert console.get(reverse(f"admin:accounts_{model}_add")).status_code == 403
    assert "delete_selected" not in console.get(changelist(model)).content.decode()


@pytest.mark.parametrize("model", ["user", "session", "serverkey", "auditentry"])
def test_things_are_found_by_their_id(console: Client, world: dict[str, Any], model: str) -> None:
    found = console.get(changelist(model), {"q": world[model].pk}).content.decode()
    assert page_of(model, world[model].pk) in found
    assert page_of(model, world[model].pk) not in console.get(changelist(model), {"q": "usr_none"}).content.decode()


@pytest.mark.exhaustive
def test_filters_and_sorting_work(console: Client, world: dict[str, Any]) -> None:
    for model, queries in {
        "user": [{"pool": "platform"}, {"pool": "applications"}, {"disabled_at__isempty": "1"}, {"o": "1"}],
        "session": [{"state": "live"}, {"state": "ended"}, {"q": "una@example.com"}],
        "serverkey": [{"state": "live"}, {"state": "ended"}],
        "auditentry": [{"actor_kind__exact": "system"}],
    }.items():
        for query in queries:
            assert console.get(changelist(model), query).status_code == 200, (model, query)
    live = console.get(changelist("session"), {"state": "live"}).content.decode()
    ended = console.get(changelist("session"), {"state": "ended"}).content.decode()
    assert world["session"].pk in live
    assert world["session"].pk not in ended


# ── What buttons do ──


def test_disabling_a_user_ends_the_sessions(api: Api, console: Client, staff: User, una: User, sign_in: Any) -> None:
    one = sign_in(una)
    assert api.get("/v1/auth/me", token=one.access_token).status == 200
    answer = act(console, "user", "disable_users", una.pk)
    assert "1 user disabled" in answer.content.decode()
    assert api.get("/v1/auth/me", token=one.access_token).status == 401
    entry = AuditEntry.objects.get(action="user.disabled")
    assert (entry.actor_kind, entry.actor_id, entry.target_id) == ("staff", staff.pk, una.pk)
    assert entry.request_id
    act(console, "user", "enable_users", una.pk)
    assert User.objects.get(pk=una.pk).disabled_at is None


def test_from_an_account_to_what_disabling_it_does_not_stop(
    console: Client, production: Environment, una: User
) -> None:
    owner = production.project.memberships.get().user
    shown = console.get(page_of("user", owner.pk)).content.decode()
    for model in ("accounts_serverkey", "projects_project"):
        assert f'{reverse(f"admin:{model}_changelist")}?q={owner.pk}"' in shown
    listed = console.get(f"{reverse('admin:projects_project_changelist')}?q={owner.pk}").content.decode()
    assert production.project_id in listed
    assert f"?q={una.pk}" in (of_user := console.get(page_of("user", una.pk)).content.decode())
    assert f"{reverse('admin:projects_project_changelist')}?q=" not in of_user


def test_signing_a_user_out_and_revoking_a_session(api: Api, console: Client, una: User, sign_in: Any) -> None:
    first, second = sign_in(una), sign_in(una)
    session = Session.objects.order_by("pk")[0]
    act(console, "session", "end_sessions", session.pk)
    assert api.get("/v1/auth/me", token=first.access_token).status == 401
    assert api.get("/v1/auth/me", token=second.access_token).status == 200
    act(console, "user", "sign_users_out", una.pk)
    assert api.get("/v1/auth/me", token=second.access_token).status == 401
    assert set(Session.objects.values_list("revoked_reason", flat=True)) == {"revoked_by_staff"}


@pytest.mark.parametrize(
    ("model", "action"),
    [
        ("user", "disable_user"),
        ("user", "enable_user"),
        ("user", "sign_user_out"),
        ("session", "end_session"),
        ("serverkey", "revoke_one_key"),
    ],
)
def test_a_button_on_a_page_asks_first_and_acts_on_post_with_csrf_only(
    console: Client, world: dict[str, Any], model: str, action: str
) -> None:
    if action == "enable_user":
        user_service.change_user(world["user"], actor=audit.SYSTEM, is_disabled=True)
    path = reverse(f"admin:accounts_{model}_{action}", args=[quote(world[model].pk)])
    assert path in console.get(page_of(model, world[model].pk)).content.decode()
    before = AuditEntry.objects.count()
    asked = console.get(path)
    assert asked.status_code == 200
    assert 'method="post"' in asked.content.decode()
    assert console.post(path, {"_form_submitted": "True"}).status_code == 403, "without the CSRF token"
    assert Client().post(path, {"_form_submitted": "True"}).status_code in (302, 403)
    assert AuditEntry.objects.count() == before
    done = console.post(path, {"_form_submitted": "True", "csrfmiddlewaretoken": csrf(console, path)})
    assert done.status_code == 200
    assert done.headers["HX-Redirect"] == page_of(model, world[model].pk)
    assert AuditEntry.objects.count() == before + 1


def test_groups_have_no_page_and_every_model_here_has_one() -> None:
    registered = {model.__name__ for model in admin.site._registry if model._meta.app_label in ("accounts", "auth")}
    signing_in = {"IdentityProvider", "Identity", "RedirectUri", "PoolSettings", "AccountEmail"}
    assert registered == {"User", "Session", "ServerKey", "SigningKey", "AuditEntry"} | signing_in
    assert signing_keys.PURPOSE == "accounts.signing_key"
