"""A new project is usable at once: two API calls, and a page on the developer's machine works with it."""

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.support.browser import browser as browser
from tests.support.browser import browser_errors as browser_errors
from tests.support.browser import in_a_browser, owner
from tests.support.browser import window as window
from tests.support.pages import page_server
from tests.support.printed_emails import link_to
from tests.support.service import Up

pytestmark = in_a_browser

PAGE = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
<script type="module">
import {{ createClient }} from "{base_url}/client.js";
window.client = createClient({{ url: "{base_url}", key: "{key}", environment: "{environment}" }});
window.told = (result) => result.then(() => "done", (error) => error.code);
</script>"""
PASSWORD = "correct horse nia"


@pytest.fixture
def project(served: Up) -> Iterator[dict[str, Any]]:
    """The first of the two calls."""
    api, token = owner(served)
    made: dict[str, Any] = api.post("/v1/projects", token=token, json={"name": "First page"}).json
    yield made
    assert api.delete(f"/v1/projects/{made['id']}", token=token).status == 204


def page_of(served: Up, project: dict[str, Any], name: str) -> str:
    """The page of one of the project's environments. The key that it contains is the second call."""
    api, token = owner(served)
    [environment] = [each["id"] for each in project["environments"] if each["name"] == name]
    body = {"name": "page", "publishable": True, "environment_id": environment}
    made = api.post("/v1/keys", token=token, json=body)
    assert made.status == 201
    return PAGE.format(base_url=served.base_url, key=made.json["secret"], environment=environment)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_first_page_works_after_two_calls(
    served: Up, project: dict[str, Any], window: Callable[..., Page], browser_errors: list[str], host: str
) -> None:
    email = f"nia-{secrets.token_hex(4)}@example.com"
    with page_server(page_of(served, project, "development"), host) as origin:
        page = window()
        page.goto(origin)
        page.wait_for_function("window.client !== undefined")
        user = {"email": email, "password": PASSWORD, "name": "Nia"}
        assert page.evaluate("(user) => told(client.auth.signUp(user))", user) == "done"
        token = link_to(served, email, "confirm-sign-up").partition("token=")[2]
        confirmed = {"token": token, "password": PASSWORD}
        assert (
            page.evaluate("(token) => client.auth.confirmSignUp(token).then((user) => user.email)", confirmed) == email
        )
        # The page can read an error: there is no table yet.
        assert page.evaluate('() => told(client.rows("notes").list())') == "not_found"
    browser_errors.clear()  # Chromium reports each 404


def test_production_admits_neither_page_nor_sign_up(
    served: Up, project: dict[str, Any], window: Callable[..., Page], browser_errors: list[str]
) -> None:
    with page_server(page_of(served, project, "production"), "localhost") as origin:
        page = window()
        page.goto(origin)
        page.wait_for_function("window.client !== undefined")
        assert page.evaluate('() => told(client.rows("notes").list())') == "network_error"
        # The service refuses the sign-up, and the page cannot even read why.
        user = {"email": "nia@example.com", "password": PASSWORD}
        assert page.evaluate("(user) => told(client.auth.signUp(user))", user) == "network_error"
    browser_errors.clear()
    api, _ = owner(served)
    [environment] = [each["id"] for each in project["environments"] if each["name"] == "production"]
    answer = api.post("/v1/auth/signup", environment=environment, json=user)
    assert (answer.status, answer.error) == (403, "forbidden")


def test_development_admits_no_other_origin(served: Up, project: dict[str, Any]) -> None:
    api, _ = owner(served)
    [environment] = [each["id"] for each in project["environments"] if each["name"] == "development"]
    for origin in ("https://evil.example", "http://localhost.evil.example:3000", "http://192.168.1.7:3000", "null"):
        answer = api.post(
            "/v1/auth/token", environment=environment, json={"grant_type": "password"}, headers={"Origin": origin}
        )
        assert answer.status == 400
        assert "Access-Control-Allow-Origin" not in answer.headers
