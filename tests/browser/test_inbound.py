"""What a tenant's function answers at an inbound endpoint does nothing in the browser of an operator who is signed in on the
same host: it runs no script, has no origin and redirects nowhere."""

import json
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Browser

from tests.support.browser import PATIENCE_MS, in_a_browser, owner, sign_in
from tests.support.browser import browser as browser  # a fixture
from tests.support.service import Up

pytestmark = in_a_browser

SAY = "export default ({query}) => ({$response: JSON.parse(decodeURIComponent(query))})"
SCRIPT = 'document.title = "owned"; fetch("/admin/")'
PAGES = [
    f'<html xmlns="http://www.w3.org/1999/xhtml"><head><title>x</title><script>{SCRIPT}</script></head>'
    f"<body onload='{SCRIPT}'><img src=\"/x\" onerror='{SCRIPT}'/></body></html>",
    f"<svg xmlns=\"http://www.w3.org/2000/svg\" onload='{SCRIPT}'><script>{SCRIPT}</script></svg>",
    '<?xml version="1.0"?><?xml-stylesheet type="text/xsl" href="#x"?><x><xsl:stylesheet id="x" version="1.0"'
    ' xmlns:xsl="http://www.w3.org/1999/XSL/Transform"><xsl:template match="/"><html xmlns="http://www.w3.org/1999/xhtml">'
    f"<script>{SCRIPT}</script></html></xsl:template></xsl:stylesheet></x>",
    '<html xmlns="http://www.w3.org/1999/xhtml"><head><meta http-equiv="refresh" content="0; url=/admin/"/></head></html>',
]


@pytest.fixture(scope="module")
def address(served: Up) -> str:
    api, token = owner(served)
    environment = served.facts["environments"]["production"]
    path = "/v1/functions/words-its-answer"
    deployed = api.request("PUT", path, token=token, environment=environment, json={"source": SAY})
    assert deployed.status in (200, 201), deployed.body
    made = api.post(f"{path}/inbound", token=token, environment=environment, json={"async": False})
    return str(made.json["url"])


def test_a_real_provider_gets_what_the_function_says(address: str) -> None:
    for response, status, content in (
        ({"status": 410, "body": "gone"}, 410, b"gone"),
        ({"status": 204}, 204, b""),
        ({"headers": {"content-type": "text/xml"}, "body": "<Response/>"}, 200, b"<Response/>"),
    ):
        got = httpx.get(f"{address}?{quote(json.dumps(response))}")
        assert (got.status_code, got.content) == (status, content)
    refused = httpx.get(
        f"{address}?{quote(json.dumps({'headers': {'retry-after': '1' + chr(13) + chr(10) + 'a: b'}}))}"
    )
    assert (refused.status_code, refused.headers.get("a")) == (502, None)


@pytest.mark.parametrize("content_type", ["text/xml", "application/xml"])
def test_no_page_of_a_tenant_acts_on_the_platforms_host(
    browser: Browser,
    served: Up,
    address: str,
    content_type: str,
) -> None:
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    sign_in(page, served)
    for body in PAGES:
        response = {"headers": {"content-type": content_type}, "body": body}
        answered: list[str] = []
        page = context.new_page()
        page.on("response", lambda response, answered=answered: answered.append(response.url))
        url = f"{address}?{quote(json.dumps(response))}"
        got = page.goto(url)
        assert got is not None
        assert got.status == 200
        page.wait_for_timeout(300)
        assert page.evaluate("self.origin") == "null", body
        assert page.title() != "owned", body
        assert page.url == url, body
        assert answered == [url], body
        page.close()
    context.close()
