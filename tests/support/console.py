"""Pages of the console, opened by staff."""

from collections.abc import Callable

import pytest
from django.test import Client

from accounts import audit
from accounts.staff import roles
from accounts.staff.roles import StaffRole
from accounts.users import service as user_service
from tests.projects.conftest import Make


@pytest.fixture
def console() -> Client:
    client = Client()
    client.force_login(
        user_service.create_user(
            pool_id=None, email="staff@example.com", password=None, name="Staff", is_staff=True, actor=audit.SYSTEM
        )
    )
    return client


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
