"""Pages of the console, opened by staff."""

import html
from collections.abc import Callable

import pytest
from django.contrib.admin.utils import quote
from django.test import Client

from accounts import audit
from accounts.staff import roles
from accounts.staff.roles import StaffRole
from accounts.users import service as user_service
from tests.projects.conftest import Make

FUNCTIONS, RUNS = "/admin/functions/function/", "/admin/functions/run/"


@pytest.fixture
def console() -> Client:
    client = Client()
    client.force_login(
        user_service.create_user(
            pool_id=None, email="staff@example.com", password=None, name="Staff", is_staff=True, actor=audit.SYSTEM
        )
    )
    return client


def page(console: Client, path: str, status: int = 200) -> str:
    got = console.get(path)
    assert got.status_code == status, (path, got.status_code)
    return html.unescape(got.content.decode())


def of(thing_id: str, path: str = "/admin/webhooks/webhook/") -> str:
    return f"{path}{quote(thing_id)}/change/"


WEBHOOKS, DELIVERIES = "/admin/webhooks/webhook/", "/admin/webhooks/delivery/"


Hire = Callable[[StaffRole], Client]


@pytest.fixture
def hire(make_account: Make) -> Hire:
    def make(role: StaffRole) -> Client:
        account = make_account(role.value)
        roles.set_role(account, role, actor=audit.SYSTEM)
        client = Client()
        client.force_login(account)
        return client

    return make
