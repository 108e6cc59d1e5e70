"""The page of a project: what it has, what its plan allows, where each number leads; and what is left of it while the
database of its region is unavailable."""

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.db import OperationalError, connections
from django.test import Client

from accounts import audit
from accounts.models import User
from accounts.staff import roles
from accounts.staff.roles import StaffRole
from projects import services
from projects.directory.environments import environment_ref
from rows.migrate import service as schema_service
from tests.console.conftest import REGION, World

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

FIRST = {"tables": {"notes": {"columns": {"title": {"type": "text"}}}}}
SECOND = {"tables": {"notes": {"columns": {"title": {"type": "text"}, "body": {"type": "text", "null": True}}}}}
HEADINGS = ("Environments", "Members", "Usage (free plan)", "Largest tables", "Recent schema versions",
            "Danger zone")  # fmt: skip


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


@pytest.fixture
def project(world: World, make_user: Callable[..., User]) -> Any:
    """A real one beside the world's, with two versions of a schema."""
    owner = make_user("carol")
    made = services.create_project(
        account_id=owner.pk, name="Filled", region=REGION, plan="free", actor=audit.Actor("account", owner.pk)
    )
    production = made.environments.get(name="production")
    environment = environment_ref(production.pk)
    assert environment is not None
    for document in (FIRST, SECOND):
        schema_service.change(environment, document, actor=audit.SYSTEM)
    for which in (world.webhook, world.function):
        which.environment_id = production.pk
        which.save(using=REGION)
    return made


def shown(console: Client, project: Any) -> str:
    answer = console.get(f"/admin/projects/project/{quote(project.pk)}/change/")
    assert answer.status_code == 200
    return str(answer.content.decode())


@pytest.mark.exhaustive
def test_it_shows_what_the_project_has_and_each_number_leads_on(console: Client, project: Any) -> None:
    page = shown(console, project)
    text = text_of(page)
    for heading in HEADINGS:
        assert heading in text, heading
    assert "carol@example.com" in text
    assert "notes production" in text
    assert "Recent schema versions" in text
    assert re.search(r"Webhooks production 1 \d+", text)
    assert re.search(r"Functions production 1 \d+", text)
    used = text[text.index("Usage (free plan)") :]
    assert re.search(r"Visitor queued bytes production 0.bytes 32.0.MB", used)
    listed = [used.index(f"{name} {where} ") for name, where in (
        ("Members", "project"), ("Keys", "development"), ("Webhooks", "development"), ("Visitor queued runs", "development"),
        ("Keys", "production"), ("Functions", "production"),
    )]  # fmt: skip
    assert listed == sorted(listed), "in the order of the plan, one environment after the other"
    main = page[page.index('id="content"') :]
    links = {html.unescape(link) for link in re.findall(r'href="(/admin/[^"]+)"', main)}
    assert len(links) > 10
    for link in links:
        assert console.get(link).status_code == 200, link
    for section in ("schema", "webhooks/", "functions/"):
        assert re.search(rf'href="/console/prj_\w+/env_\w+/{section}"', main), section


def test_project_page_shows_the_rest_and_a_notice_while_a_region_is_down(console: Client, project: Any) -> None:
    def away(*_: Any) -> None:
        raise OperationalError("the server closed the connection")

    with connections[REGION].execute_wrapper(away):
        text = text_of(shown(console, project))
    assert f"{REGION} does not answer" in text
    for still in ("production", "development", "carol@example.com", "Danger zone"):
        assert still in text, still
    assert "ready ? ? ? 0" in text, "what is not known is no nought"
    assert "what changed" not in text
    assert "does not answer" not in text_of(shown(console, project))


def test_support_sees_it_without_what_would_change_it(make_user: Callable[..., User], project: Any) -> None:
    helper = make_user("sam")
    roles.set_role(helper, StaffRole.SUPPORT, actor=audit.SYSTEM)
    browser = Client()
    browser.force_login(helper)
    page = shown(browser, project)
    assert "notes" in text_of(page)
    assert 'name="_save"' not in page
    assert "Delete this project" not in page
    assert "Add a member" not in page
