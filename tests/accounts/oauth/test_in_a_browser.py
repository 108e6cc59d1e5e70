"""Signing in by another provider in a real browser, against the service as `manage.py up` runs it.

The application, the provider and the service are three origins, as in life. The choice of a provider and the page for
what went wrong are looked at with the eyes of assistive technology: by role and name.
"""

import re
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.accounts.oauth.conftest import s256
from tests.support.browser import NARROW, in_a_browser
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider
from tests.support.service import ROOT, Up

pytestmark = in_a_browser


PAGES: dict[str, str] = {}
"""By path, what the application shows."""


@pytest.fixture
def page(window: Callable[..., Page]) -> Page:
    return window(width=NARROW)


@pytest.fixture
def application() -> Iterator[str]:
    """The URL of a tenant's application: it answers every request. At /app it serves PAGES."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(
                PAGES.get(path, "<!doctype html><title>App</title><h1>Back in the application</h1>").encode()
            )

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/signed-in"
    server.shutdown()
    server.server_close()


@dataclass
class Set:
    """A project of its own on the running service, with a provider and an application."""

    base_url: str
    environment_id: str
    application: str
    client: httpx.Client
    project_id: str

    def authorize(self, **asked: str) -> str:
        query = {"environment": self.environment_id, "redirect_uri": self.application} | asked
        return f"{self.base_url}/v1/auth/authorize?{urlencode(query)}"


@pytest.fixture
def scene(served: Up, idp: IdentityProvider, application: str) -> Iterator[Set]:
    account = served.facts["account"]
    credentials = {"grant_type": "password", "email": account["email"], "password": account["password"]}
    with httpx.Client(base_url=served.base_url, timeout=30) as client:
        token = client.post("/v1/auth/token", json=credentials).json()["access_token"]
        client.headers["Authorization"] = f"Bearer {token}"
        project = client.post("/v1/projects", json={"name": "Sign-in in a browser"}).json()
        [environment_id] = [each["id"] for each in project["environments"] if each["name"] == "production"]
        client.headers["X-Environment"] = environment_id
        idp.register(f"{served.base_url}/v1/auth/callback")
        acme = {
            "name": "acme",
            "display_name": "Acme",
            "issuer": idp.issuer,
            "client_id": CLIENT_ID,
            "client_secret": CLIENT_SECRET,
        }
        for body in (acme, acme | {"name": "other", "display_name": "Another & Co"}):
            made = client.post("/v1/identity-providers", json=body)
            assert made.status_code == 201, made.text
        assert client.put("/v1/redirect-uris", json={"redirect_uris": [application]}).status_code == 200
        opened = client.patch("/v1/auth/settings", json={"sign_up": "open", "app_name": "Todo"})
        assert opened.status_code == 200, opened.text
        yield Set(served.base_url, environment_id, application, client, project["id"])
        assert client.delete(f"/v1/projects/{project['id']}").status_code == 204


def test_a_person_chooses_a_provider_signs_in_there_and_comes_back(
    page: Page, scene: Set, idp: IdentityProvider
) -> None:
    idp.person("ada", email="ada@example.com", email_verified=True, name="Ada")
    verifier = secrets.token_urlsafe(48)

    page.goto(scene.authorize(state="from the app", code_challenge=s256(verifier), code_challenge_method="S256"))
    expect(page.get_by_role("heading", name="Sign in to Todo")).to_be_visible()
    expect(page.get_by_role("link", name="Continue with Another & Co")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Continue with Acme")).to_be_focused()
    page.keyboard.press("Enter")

    page.get_by_label("Who are you").fill("ada")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Back in the application")).to_be_visible()
    heard = dict(parse_qsl(urlsplit(page.url).query))
    assert page.url.startswith(scene.application + "?")
    assert heard["state"] == "from the app"
    assert heard["iss"] == scene.base_url
    assert not [cookie for cookie in page.context.cookies() if cookie["name"].startswith("oauth_flow_")], (
        "it is used up"
    )

    body = {"grant_type": "authorization_code", "code": heard["code"], "code_verifier": verifier}
    with httpx.Client(base_url=scene.base_url, headers={"X-Environment": scene.environment_id}) as client:
        stolen = client.post("/v1/auth/token", json=body | {"code_verifier": None})
        assert (stolen.status_code, stolen.json()["error"]["code"]) == (400, "invalid_grant")
        got = client.post("/v1/auth/token", json=body)
        assert got.status_code == 200, got.text
        me = client.get("/v1/auth/me", headers={"Authorization": f"Bearer {got.json()['access_token']}"})
        assert me.json()["email"] == "ada@example.com"
        assert client.post("/v1/auth/token", json=body).status_code == 400


def test_a_person_who_cancels_and_one_who_was_led_here(page: Page, scene: Set, idp: IdentityProvider) -> None:
    idp.person("ada", email="ada@example.com", email_verified=True)
    page.goto(scene.authorize(provider="acme", state="s"))
    page.get_by_label("Who are you").fill("ada")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("heading", name="Back in the application")).to_be_visible()
    assert dict(parse_qsl(urlsplit(page.url).query))["error"] == "access_denied"

    # Another person's sign-in, continued in this browser: a page says so, and no application is notified.
    page.goto(f"{scene.base_url}/v1/auth/callback/idp_x?code=x&state={secrets.token_urlsafe(32)}")
    expect(page.get_by_role("heading", name="Signing in did not work")).to_be_visible()
    expect(page.get_by_text("not started in this browser")).to_be_visible()
    page.goto(scene.authorize(provider="acme").replace("signed-in", "elsewhere"))
    expect(page.get_by_text("not one of the application's redirect URIs")).to_be_visible()
    assert page.url.startswith(scene.base_url)


def test_the_web_page_of_the_guide_signs_in(page: Page, scene: Set, idp: IdentityProvider) -> None:
    """The code in docs/how-to/sign-in-with-a-provider.md, unchanged, from the button to the user."""
    origin = scene.application.removesuffix("/signed-in")
    opened = scene.client.patch(
        f"/v1/projects/{scene.project_id}/environments/{scene.environment_id}", json={"allowed_origins": [origin]}
    )
    assert opened.status_code == 200, opened.text
    [code] = re.findall(
        r"```js\n(.*?)```", (ROOT / "docs" / "how-to" / "sign-in-with-a-provider.md").read_text("utf-8"), re.DOTALL
    )
    key = scene.client.post(
        "/v1/keys", json={"name": "page", "publishable": True, "environment_id": scene.environment_id}
    ).json()["secret"]
    for shown, real in (
        ("http://127.0.0.1:8000", scene.base_url),
        ("env_…", scene.environment_id),
        ("pk_…", key),
        ('"google"', '"acme"'),
    ):
        assert shown in code
        code = code.replace(shown, real)
    PAGES["/app"] = PAGES["/signed-in"] = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>App</title>'
        f"<button id=google>Continue with Google</button><script type=module>{code}</script>"
    )
    idp.person("ada", email="ada@example.com", email_verified=True, name="Ada")
    try:
        page.goto(f"{origin}/app")
        page.get_by_role("button", name="Continue with Google").click()
        page.get_by_label("Who are you").fill("ada")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_text("Hello Ada")).to_be_visible()
        assert page.url == scene.application, "the code is removed from the URL"
    finally:
        PAGES.clear()
