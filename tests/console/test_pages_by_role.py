"""Every page of the console as each role gets it: opened, named, labelled, nothing inline. What a browser alone can tell
(widths, the keyboard, the policy at work) is for tests/browser.

And the colours that are ours: their contrast in both themes, by the formula of WCAG 2.2 (1.4.3: 4.5 to 1 for text).
"""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse

from accounts import audit
from accounts.models import User
from accounts.staff import roles
from accounts.staff.roles import StaffRole
from tests.console.conftest import REGION, World
from tests.support.service import ROOT

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__")]

STATIC = ROOT / "platform_site" / "static" / "platform_site"
FIELDS = {"input", "select", "textarea"}
UNNAMED = {"hidden", "submit", "button", "image"}


class Page(HTMLParser):
    """What a page is made of, as far as these tests ask."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.labelled: set[str] = set()
        self._within_labels = 0
        self.unlabelled: list[dict[str, str]] = []
        self._fields: list[dict[str, str]] = []
        self.feed(text)
        self.unlabelled = [field for field in self._fields if field.get("id", "") not in self.labelled]

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.tags.append((tag, found))
        if tag == "label":
            self._within_labels += 1
            self.labelled.add(found.get("for", ""))
        named = self._within_labels or found.get("aria-label") or found.get("aria-labelledby") or found.get("title")
        seen = found.get("type") not in UNNAMED and "hidden" not in found.get("class", "").split()
        if tag in FIELDS and seen and not named:
            self._fields.append(found)

    def handle_endtag(self, tag: str) -> None:
        if tag == "label":
            self._within_labels -= 1

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


@pytest.fixture
def hire(make_user: Callable[..., User]) -> Callable[[StaffRole], Client]:
    def make(role: StaffRole) -> Client:
        account = make_user(role.value)
        roles.set_role(account, role, actor=audit.SYSTEM)
        browser = Client()
        browser.force_login(account)
        return browser

    return make


def addresses(world: World) -> list[str]:
    """Every list, every page of one thing that the world has, and every form that adds one."""
    event = world.event(request_id=None)
    world.delivery(event, status="exhausted", code=500)
    world.run(status="failed", error={"name": "Error", "message": "no", "stack": "at default", "reason": "user_error"})
    one_of = {"projects_project": world.project, "projects_environment": world.environment,
              "projects_member": world.project.memberships.get(), "accounts_user": world.project.memberships.get().user}  # fmt: skip
    found = ["/admin/", "/admin/timeline/", f"/admin/timeline/?q={event.event_id}", f"/admin/waiting/{REGION}/",
             "/admin/security/", "/admin/password_change/"]  # fmt: skip
    for model, page in admin.site._registry.items():
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        changelist = reverse(f"admin:{name}_changelist")
        found += [changelist, f"{changelist}?q=nothing-of-this-name"]
        if name in one_of:
            found.append(reverse(f"admin:{name}_change", args=[quote(one_of[name].pk)]))
        if type(page).__name__ in (
            "ProjectAdmin",
            "MemberAdmin",
            "IdentityProviderAdmin",
            "RedirectUriAdmin",
        ):
            found.append(reverse(f"admin:{name}_add"))
    found += [reverse(f"admin:projects_project_{page}", args=[quote(world.project.pk)])
              for page in ("delete", "suspend", "resume")]  # fmt: skip
    return found


@pytest.mark.parametrize("role", StaffRole)
def test_every_page_opens_and_is_named_labelled_and_free_of_inline_code(
    hire: Callable[[StaffRole], Client], world: World, role: StaffRole
) -> None:
    console = hire(role)
    paths = addresses(world)
    assert len(paths) > 50
    if role is not StaffRole.SUPERUSER:
        paths = [path for path in paths if "?q=" not in path]  # empty, for all alike
    for path in paths:
        answer = console.get(path)
        if role is StaffRole.SUPPORT and re.search(r"/(add|delete|suspend|resume)/$", path):
            assert answer.status_code == 403, path
            continue
        assert answer.status_code == 200, (path, answer.status_code)
        held_to_the_rules(path, answer)


def held_to_the_rules(path: str, answer: Any) -> None:
    text = answer.content.decode()
    page = Page(text)
    assert page.count("h1") == 1, path
    assert re.search(r"<title>\s*[^\s<|][^<]*</title>", text), path
    assert next(found for tag, found in page.tags if tag == "html").get("lang") == "en", path
    assert page.unlabelled == [], path
    for tag, found in page.tags:
        assert not [name for name in found if name.startswith("on")], (path, tag, found)
        assert not found.get("href", "").startswith("javascript:"), (path, found)
        if tag == "script":
            assert found.get("src") or found.get("type") == "application/json", (path, "a script in the page")
        if tag == "img":
            assert "alt" in found, (path, found)
    nonces = re.findall(r"'nonce-([^']+)'", answer.headers["Content-Security-Policy"])
    for found in (found for tag, found in page.tags if tag == "style"):
        assert found.get("nonce") in nonces, path
    assert "'unsafe-inline'" not in re.sub(r"style-src-attr[^;]*", "", answer.headers["Content-Security-Policy"]), path


@pytest.mark.parametrize("path", ["/admin/login/", "/admin/login/forgotten/"])
def test_pages_before_signing_in_keep_the_same_rules(path: str) -> None:
    held_to_the_rules(path, Client().get(path))


def test_a_heading_is_written_as_the_thing_is(console: Client, world: World) -> None:
    """An email that begins with a capital looks different to a user who copies it."""
    owner = world.project.memberships.get().user
    page = console.get(reverse("admin:accounts_user_change", args=[quote(owner.pk)])).content.decode()
    heading = re.sub(r"\s+", " ", page[page.index("<h1") : page.index("</h1>")])
    assert f">{owner.email}<" in heading
    assert ">Users<" in heading


def test_a_page_is_called_as_in_the_menu(console: Client, world: World) -> None:
    def heading(path: str) -> str:
        page = console.get(path).content.decode()
        inner = re.sub(
            r"<span class=\"material.*?</span>", "", page[page.index("<h1") : page.index("</h1>")], flags=re.S
        )
        return " ".join(re.sub(r"<[^>]+>", " ", inner).split())

    assert heading("/admin/projects/project/") == "Projects 1 result"
    assert heading("/admin/projects/project/add/") == "Projects new"
    project = reverse("admin:projects_project_change", args=[quote(world.project.pk)])
    assert heading(project) == f"Projects {world.project.name}"
    assert heading("/admin/accounts/poolsettings/").startswith("Sign-up")
    assert heading("/admin/accounts/accountemail/").startswith("Emails")
    assert heading("/admin/platform_site/ratelimitedcaller/").startswith("Rate-limited callers")


def test_moments_say_their_zone_and_ids_lead_on(console: Client, world: World) -> None:
    environment = world.environment
    page = console.get(reverse("admin:projects_environment_change", args=[quote(environment.pk)])).content.decode()
    assert f"{environment.created_at:%Y-%m-%d %H:%M:%S} UTC" in page
    entry = audit.record(
        "row.seen", "tsk_1", actor=audit.SYSTEM, environment_id=environment.pk, project_id=world.project.pk
    )
    page = console.get(reverse("admin:accounts_auditentry_change", args=[quote(entry.pk)])).content.decode()
    assert 'class="text-link" href="/admin/timeline/?q=tsk_1"' in page, "and is seen to be a link"
    for model, pk in (("projects_environment", environment.pk), ("projects_project", world.project.pk)):
        assert f'href="{reverse(f"admin:{model}_change", args=[quote(pk)])}"' in page


def test_an_empty_list_says_what_to_do_next(console: Client, world: World) -> None:
    for path, words in (
        ("/admin/accounts/identityprovider/", "Users of its environment can sign in with it"),
        ("/admin/accounts/poolsettings/", "PATCH /v1/auth/settings"),
        ("/admin/platform_site/ratelimitedcaller/", "No caller reached its rate limit"),
        ("/admin/projects/project/?q=nothing-of-this-name", "No project fits “nothing-of-this-name”"),
    ):
        page = console.get(path).content.decode()
        assert words in page, path
    assert "Show all" in page


def test_the_menu_is_reached_by_keyboard(console: Client, world: World) -> None:
    page = Page(console.get("/admin/").content.decode())
    switches = [found for tag, found in page.tags if tag == "button" and "menu-switch" in found.get("class", "")]
    assert [found["aria-label"] for found in switches] == ["Menu", "Menu"], "one for each width"


# ── Colours ──


def contrast(one: str, other: str) -> float:
    """Of two colours such as `#0b6e4f`, from 1 to 21."""

    def luminance(colour: str) -> float:
        channels = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
        red, green, blue = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_the_formula_is_the_known_one() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(
    ("sheet", "texts", "grounds"),
    [
        ("pages.css", ("ink", "soft", "accent"), ("paper",)),
        ("accounts.css", ("ink", "soft", "accent", "wrong"), ("card",)),
        ("accounts.css", ("on-accent",), ("accent",)),
    ],
)
def test_our_colours_are_readable_in_both_themes(sheet: str, texts: tuple[str, ...], grounds: tuple[str, ...]) -> None:
    themes = re.findall(r":root \{(.*?)\}", (STATIC / sheet).read_text(), re.DOTALL)
    assert len(themes) == 2, "light and dark"
    for theme in themes:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", theme))
        for text in texts:
            for ground in grounds:
                assert contrast(colours[text], colours[ground]) >= 4.5, (sheet, text, ground)
