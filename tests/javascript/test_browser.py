"""The client in a real browser, in a page of another origin: ten tabs share one session."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.support.browser import browser as browser
from tests.support.browser import browser_errors as browser_errors
from tests.support.browser import in_a_browser, owner
from tests.support.browser import window as window
from tests.support.pages import page_server
from tests.support.service import Up

pytestmark = in_a_browser

TABS = 10
PAGE = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,">
<script type="module">
import {{ createClient }} from "{base_url}/client.js";
window.createClient = createClient;
window.client = createClient({{ url: "{base_url}", key: "{key}", environment: "{environment}" }});
window.users = [];
client.auth.onChange((user) => users.push(user?.email ?? null));
</script>"""
LIST = 'client.rows("tasks").list().then((page) => page.data.length, (error) => error.code)'


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


def test_a_server_key_is_refused_in_a_page(served: Up, window: Callable[..., Page], url: str) -> None:
    page = window()
    page.goto(url)
    page.wait_for_function("window.client !== undefined")
    told = page.evaluate(
        "(options) => { try { createClient(options) } catch (error) { return error.message } }",
        {"url": served.base_url, "key": served.facts["server_key"]},
    )
    assert "server key" in told
