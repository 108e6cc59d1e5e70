"""The client in a real browser, in a page of another origin: ten tabs share one session, and live changes go on across
a cut connection and an expired token."""

import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import jwt
import pytest
from playwright.sync_api import Page

from tests.support.browser import browser as browser
from tests.support.browser import browser_errors as browser_errors
from tests.support.browser import in_a_browser, owner
from tests.support.browser import window as window
from tests.support.client import Api
from tests.support.pages import page_server
from tests.support.service import Up, manage

pytestmark = in_a_browser

TABS = 10
PAGE = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
<script type="module">
import {{ createClient }} from "{base_url}/client.js";
window.createClient = createClient;
window.options = {{ url: "{base_url}", key: "{key}", environment: "{environment}" }};
window.client = createClient(options);
window.users = [];
client.auth.onChange((user) => users.push(user?.email ?? null));
</script>"""
LIST = 'client.rows("tasks").list().then((page) => page.data.length, (error) => error.code)'

FOLLOW = """async (where) => {
    window.seen = [];
    for await (const change of client.rows("tasks").changes({ where, columns: ["title"] })) {
        seen.push(change.row?.title ?? change.type);
    }
}"""
SHORT_TOKEN = """
from datetime import timedelta
from accounts.tokens.access_tokens import AccessToken
token = AccessToken.for_session(user_id={sub!r}, session_id={sid!r}, environment_id={env!r})
token.set_exp(lifetime=timedelta(seconds=12))
print("token", token)
"""


@pytest.fixture
def url(served: Up) -> Iterator[str]:
    """A page on a server of its own, whose origin the environment allows."""
    api, token = owner(served)
    environment = served.facts["environments"]["production"]
    body = {"name": "page", "publishable": True, "environment_id": environment}
    key = api.post("/v1/keys", token=token, environment=environment, json=body).json["secret"]
    path = f"/v1/projects/{served.facts['project_id']}/environments/{environment}"
    with page_server(PAGE.format(base_url=served.base_url, key=key, environment=environment)) as origin:
        assert api.patch(path, token=token, json={"allowed_origins": [origin]}).status == 200
        yield origin
        assert api.patch(path, token=token, json={"allowed_origins": []}).status == 200


def test_ten_tabs_have_one_session_and_renew_it_once(served: Up, window: Callable[..., Page], url: str) -> None:
    first = window()
    tabs = [first, *(first.context.new_page() for _ in range(TABS - 1))]
    for tab in tabs:
        tab.goto(url)
        tab.wait_for_function("users.length === 1")  # no user is signed in
    user = served.facts["app_users"][0]
    credentials = {"email": user["email"], "password": user["password"]}
    first.evaluate("(credentials) => client.auth.signIn(credentials).then((user) => user.id)", credentials)
    for tab in tabs:
        tab.wait_for_function("(email) => users.at(-1) === email", arg=user["email"])

    renewals: list[Any] = []
    first.context.on("request", lambda request: renewals.append(request) if "/auth/token" in request.url else None)
    # The access token is at its end, in every tab's memory, too: it is read when the page is loaded.
    first.evaluate(
        "for (const [name, text] of Object.entries(localStorage)) "
        "localStorage[name] = JSON.stringify({ ...JSON.parse(text), expires_at: 0 })"
    )
    for tab in tabs:
        tab.reload()
        tab.wait_for_function("users.length === 1")
    for tab in tabs:
        tab.evaluate(f"() => {{ window.found = {LIST}; }}")
    found = [tab.evaluate("() => window.found") for tab in tabs]
    assert found == [found[0]] * TABS
    assert found[0] > 0
    # One renewal. A tab may repeat it: what another process wrote to the storage arrives there a moment later, and a
    # refresh token returns the same successor until that is used.
    asked = [request.post_data_json["refresh_token"] for request in renewals if request.method == "POST"]
    assert len(set(asked)) == 1
    assert len(asked) <= TABS // 2

    tabs[-1].evaluate("() => client.auth.signOut()")
    for tab in tabs:
        tab.wait_for_function("users.at(-1) === null")
        assert tab.evaluate("() => client.auth.user()") is None
    assert first.evaluate("() => localStorage.length") == 0


def test_a_session_in_session_storage_is_no_started_sign_in(
    served: Up, window: Callable[..., Page], url: str, browser_errors: list[str]
) -> None:
    page = window()
    page.goto(url)
    page.wait_for_function("users.length === 1")
    make = "createClient({ ...options, storage: sessionStorage })"
    user = served.facts["app_users"][0]
    credentials = {"email": user["email"], "password": user["password"]}
    page.evaluate(f"(credentials) => {make}.auth.signIn(credentials).then((user) => user.id)", credentials)
    assert page.evaluate(f"{make}.auth.finishSignIn()") is None
    assert page.evaluate(f"{make}.auth.user().then((user) => user.email)") == user["email"]


def test_live_changes_go_on_across_a_cut_connection_and_an_expired_token(
    served: Up, window: Callable[..., Page], url: str, browser_errors: list[str]
) -> None:
    user, environment = served.facts["app_users"][0], served.facts["environments"]["production"]
    credentials = {"email": user["email"], "password": user["password"]}
    api = Api(served.base_url)
    grant = api.post("/v1/auth/token", environment=environment, json={"grant_type": "password", **credentials})
    token = grant.json["access_token"]
    created = api.post("/v1/rows/lists", token=token, json={"name": f"List {uuid4()}"}).json["id"]

    def add(title: str) -> None:
        assert api.post("/v1/rows/tasks", token=token, json={"title": title, "list_id": created}).status == 201

    page = window()
    page.goto(url)
    page.wait_for_function("users.length === 1")
    page.evaluate("(credentials) => client.auth.signIn(credentials).then((user) => user.id)", credentials)
    # A token that soon expires, of which the page believes that it is good for long, as one with a wrong clock does.
    kept = page.evaluate("() => JSON.parse(Object.values(localStorage)[0])")
    claims = jwt.decode(kept["access_token"], options={"verify_signature": False})
    short = manage(served, "shell", "-c", SHORT_TOKEN.format(**claims)).split("token ")[-1].strip()
    page.evaluate(
        "(token) => { const [name, text] = Object.entries(localStorage)[0];"
        "localStorage[name] = JSON.stringify({ ...JSON.parse(text), access_token: token }) }",
        short,
    )
    page.reload()
    page.wait_for_function("users.length === 1")
    opened: list[str] = []
    page.on("request", lambda request: opened.append(request.headers.get("authorization", request.url)))
    page.evaluate(f"(where) => {{ ({FOLLOW})(where); }}", {"list_id": created})
    page.wait_for_function('seen.at(-1) === "reset"')
    add("first")
    page.wait_for_function('seen.at(-1) === "first"')
    page.context.set_offline(True)
    add("while cut")
    page.wait_for_timeout(500)
    page.context.set_offline(False)
    page.wait_for_function('seen.at(-1) === "while cut"')
    assert opened[0] == f"Bearer {short}"
    ends = time.monotonic() + 30
    while opened[-1] == f"Bearer {short}" and time.monotonic() < ends:  # the stream ends with its token
        page.wait_for_timeout(100)
    add("after the token")
    page.wait_for_function('seen.at(-1) === "after the token"')
    assert opened[-1] != f"Bearer {short}"
    assert page.evaluate("() => seen") == ["reset", "first", "while cut", "after the token"]
    browser_errors.clear()  # Chromium reports the cut connection and the refused token


def test_a_server_key_is_refused_in_a_page(served: Up, window: Callable[..., Page], url: str) -> None:
    page = window()
    page.goto(url)
    page.wait_for_function("window.client !== undefined")
    told = page.evaluate(
        "(options) => { try { createClient(options) } catch (error) { return error.message } }",
        {"url": served.base_url, "key": served.facts["server_key"]},
    )
    assert "server key" in told
