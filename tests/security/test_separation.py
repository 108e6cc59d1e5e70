"""The console's cookie opens nothing under /v1, and a token opens nothing of the console."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import User
from tests.support.client import Api
from tests.support.openapi import OPEN, filled, name, operations

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture
def operator(db: None) -> Client:
    """A superuser's browser, signed in to the console."""
    User.objects.create_superuser("root@example.test", "a long enough password")
    client = Client(raise_request_exception=False)
    client.post(reverse("admin:login"), {"username": "root@example.test", "password": "a long enough password"})
    assert client.get(reverse("admin:index")).status_code == 200, "the cookie is a good one"
    return client


def test_the_admin_cookie_opens_no_path_under_v1(api: Api, operator: Client) -> None:
    cookie = "; ".join(f"{morsel.key}={morsel.value}" for morsel in operator.cookies.values())
    assert "sessionid=" in cookie
    for number, operation in enumerate(operations()):
        if name(operation) in OPEN:
            continue
        method, path, described = operation
        answer = api.request(
            method,
            filled(path, described),
            headers={"Cookie": cookie, "Origin": "http://testserver", "X-CSRFToken": "x"},
            body=b"{}" if method in ("POST", "PUT", "PATCH") else b"",
            remote_addr=f"2001:db8:1:{number:x}::1",
        )
        assert answer.status == 401, name(operation)
        assert "Set-Cookie" not in answer.headers


def test_the_cookies_are_not_even_sent_there(operator: Client) -> None:
    operator.get(reverse("admin:password_change"))
    for cookie in ("sessionid", "csrftoken"):
        morsel: Any = operator.cookies[cookie]
        assert morsel["path"] == "/admin/"
        assert morsel["httponly"]
        assert morsel["samesite"] == "Lax"


def test_a_token_opens_nothing_of_the_console(api: Api) -> None:
    answer = api.get("/admin/", token="sk_00000000000000000000000000000000000000")
    assert (answer.status, answer.headers["Location"]) == (302, "/admin/login/?next=/admin/")
