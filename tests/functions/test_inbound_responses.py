"""Custom responses of functions at inbound endpoints: status, type and body as providers want them, and
nothing by which a tenant acts on the platform's own host. In the real runtime."""

import base64
import json
from typing import Any

import pytest

from functions.execution.custom_response import CONTENT_POLICY
from functions.models import Run
from functions.worker import Worker
from platform_site.identity.callers import EnvironmentRef
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.functions import deploy, invoke
from tests.support.inbound import create_endpoint, inbound_runs, listed, send

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

SAY = "export default ({body}) => ({$response: JSON.parse(body)})"
FRONT = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Content-Security-Policy": CONTENT_POLICY}
PLAIN, TWIML = "text/plain; charset=utf-8", '<?xml version="1.0"?><Response><Message>ä</Message></Response>'


@pytest.fixture
def path(tracker: Tracker) -> str:
    """Of an endpoint whose function returns its input."""
    deploy(tracker, "say", SAY)
    return create_endpoint(tracker, "say", **{"async": False})


def said(tracker: Tracker, path: str, response: Any) -> Answer:
    return send(tracker, path, json.dumps(response).encode())


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("response", "status", "content_type", "body"),
    [
        ({}, 200, PLAIN, b""),
        ({"body": "1158201444"}, 200, PLAIN, b"1158201444"),
        ({"status": 410}, 410, PLAIN, b""),
        ({"status": 204}, 204, None, b""),
        ({"status": 205}, 205, None, b""),
        ({"status": 503, "headers": {"Retry-After": "120"}, "body": "later"}, 503, PLAIN, b"later"),
        ({"status": 599, "body": "\r\n\x00<script>"}, 599, PLAIN, b"\r\n\x00<script>"),
        ({"headers": {"content-type": "text/xml"}, "body": TWIML}, 200, "text/xml; charset=utf-8", TWIML.encode()),
        ({"headers": {"Content-Type": "Application/XML;charset=UTF-8"}}, 200, "application/xml; charset=utf-8", b""),
        ({"headers": {"content-type": "application/json"}, "body": '{"a": 1}'}, 200, "application/json", b'{"a": 1}'),
        (
            {"status": 422, "headers": {"content-type": "application/problem+json; charset=utf-8"}, "body": "{}"},
            422,
            "application/problem+json",
            b"{}",
        ),
        (
            {"body_base64": base64.b64encode(bytes(range(256))).decode()},
            200,
            "application/octet-stream",
            bytes(range(256)),
        ),
        (
            {"body_base64": "YcOk", "headers": {"content-type": "text/csv"}},
            200,
            "text/csv; charset=utf-8",
            "aä".encode(),
        ),
    ],
)
def test_a_function_words_its_answer(
    tracker: Tracker, path: str, response: dict[str, Any], status: int, content_type: str | None, body: bytes
) -> None:
    got = said(tracker, path, response)
    assert (got.status, got.headers.get("Content-Type"), got.body) == (status, content_type, body)
    assert {name: got.headers[name] for name in FRONT} == FRONT
    assert got.headers.get("Retry-After") == response.get("headers", {}).get("Retry-After")
    (run,) = inbound_runs(tracker)
    assert run.status == "succeeded"
    assert json.loads(run.output or "") == {"$response": response}
    assert listed(tracker, "say")[0]["uses"] == 1


def test_providers_that_want_their_own_value_again_get_it(tracker: Tracker) -> None:
    """Asana's handshake."""
    deploy(
        tracker,
        "asana",
        'export default ({headers}) => ({$response: {headers: {"X-Hook-Secret": headers["x-hook-secret"]}}})',
    )
    got = send(tracker, create_endpoint(tracker, "asana", **{"async": False}), headers={"X-Hook-Secret": "b537207f"})
    assert (got.status, got.headers["X-Hook-Secret"]) == (200, "b537207f")


HOSTILE = [
    None,
    [],
    "text",
    {"Status": 200},
    {"status": "200"},
    {"status": 200.5},
    {"status": True},
    {"status": None},
    {"status": -1},
    {"status": 1e99},
    *(
        {"status": status}
        for status in (0, 99, 100, 101, 103, 199, 300, 301, 302, 304, 307, 308, 399, 600, 999, 10**20)
    ),
    {"status": 204, "body": "x"},
    {"status": 204, "headers": {"content-type": "text/plain"}},
    {"headers": []},
    {"headers": None},
    {"headers": {"retry-after": "1\r\nSet-Cookie: a=b"}},
    {"headers": {"retry-after": "1\nSet-Cookie: a=b"}},
    {"headers": {"retry-after": "1\x00"}},
    {"headers": {"retry-after": "é"}},
    {"headers": {"retry-after": "\u010d\u010a"}},
    {"headers": {"retry-after": " 1"}},
    {"headers": {"retry-after": ""}},
    {"headers": {"retry-after": 1}},
    {"headers": {"retry-after": ["1", "2"]}},
    {"headers": {"retry-after": "x" * 1001}},
    {"headers": {"retry-after": "1", "Retry-After": "2"}},
    {"headers": {"retry-after\r\nset-cookie": "1"}},
    {"headers": {"retry-after ": "1"}},
    {"headers": {"": "1"}},
    {"headers": {f"x-{number}": "y" for number in range(10_000)}},
    *(
        {"headers": {name: value}}
        for name, value in (
            ("Set-Cookie", "sessionid=x; Path=/"),
            ("Location", "javascript:alert(1)"),
            ("Location", "https://example.com"),
            ("Refresh", "0; url=https://example.com"),
            ("Content-Disposition", "attachment; filename=console.exe"),
            ("Access-Control-Allow-Origin", "*"),
            ("Access-Control-Allow-Credentials", "true"),
            ("Content-Security-Policy", "default-src *"),
            ("X-Content-Type-Options", "sniff"),
            ("X-Accel-Redirect", "/etc/passwd"),
            ("X-Sendfile", "/etc/passwd"),
            ("X-Request-Id", "forged"),
            ("X-Platform-Depth", "0"),
            ("RateLimit", "forged"),
            ("WWW-Authenticate", "Basic"),
            ("Clear-Site-Data", '"cookies"'),
            ("Service-Worker-Allowed", "/"),
            ("Strict-Transport-Security", "max-age=0"),
            ("Cache-Control", "public, max-age=31536000"),
            ("Content-Length", "0"),
            ("Transfer-Encoding", "chunked"),
            ("Content-Encoding", "gzip"),
            ("Connection", "close"),
            ("Upgrade", "websocket"),
            ("Link", "</>; rel=preload"),
            ("SourceMap", "/x"),
            ("Server", "forged"),
        )
    ),
    *(
        {"headers": {"content-type": kind}, "body": "<script>alert(document.cookie)</script>"}
        for kind in (
            "text/html",
            "TEXT/HTML; charset=utf-8",
            "text/html;charset=utf-8",
            "application/xhtml+xml",
            "image/svg+xml",
            "application/rss+xml",
            "text/xsl",
            "text/javascript",
            "application/javascript",
            "application/ecmascript",
            "text/css",
            "text/event-stream",
            "application/wasm",
            "application/pdf",
            "multipart/x-mixed-replace; boundary=x",
            "message/rfc822",
            "application/x-shockwave-flash",
            "text/cache-manifest",
            "text/plain; charset=utf-7",
            "text/xml; charset=utf-16",
            "text/plain; charset=utf-8; charset=utf-7",
            "text/plain, text/html",
            "text/plain;text/html",
            "text/plain\ttext/html",
            "text/html\x0b",
            "application/svg+xml+json\r\nx: y",
            "application/+json",
            "text/x+json",
            "json",
            "*/*",
        )
    ),
    {"body": 5},
    {"body": None},
    {"body": {"a": 1}},
    {"body": ["x"]},
    {"body": "x", "body_base64": ""},
    {"body_base64": "not base64!"},
    {"body_base64": "YQ"},
    {"body_base64": "YQ==\n"},
    {"body_base64": "ä"},
    {"cookies": {"a": "b"}},
    {"__proto__x": 1},
]


@pytest.mark.exhaustive
def test_what_cannot_be_sent_is_the_runs_own_failure(tracker: Tracker, path: str) -> None:
    """Nothing of it is sent, and the run says what was wrong."""
    for response in HOSTILE:
        shown = str(response)[:100]
        got = said(tracker, path, response)
        assert (got.status, got.error) == (502, "function_failed"), shown
        assert got.headers["Content-Type"] == "application/json"
        assert not {"set-cookie", "location", "retry-after", "refresh"} & {name.lower() for name in got.headers}, shown
        run = Run.objects.using(tracker.project.cluster).get(pk=got.json["error"]["run_id"])
        assert (run.status, run.output, run.error["name"], run.error["reason"]) == (
            "failed", None, "BadResponse", "user_error",
        ), shown  # fmt: skip
        assert len(run.error["message"]) < 400
        assert run.error["message"].isprintable()
    assert send(tracker, path, b"{}").status == 200, "and the next call is answered"


@pytest.mark.parametrize(
    "returns",
    [
        "{$response: {status: 204}, more: 1}",
        "{more: 1, $response: {status: 204}}",
        '{$response: {status: JSON.rawJSON("200.0")}}',
        '{$response: {status: JSON.rawJSON("2e2")}}',
        '{$response: {status: 200, headers: JSON.rawJSON("null")}}',
        "{$response: null}",
    ],
)
def test_what_is_half_a_response_is_none(tracker: Tracker, returns: str) -> None:
    deploy(tracker, "half", f"export default () => ({returns})")
    got = send(tracker, create_endpoint(tracker, "half", **{"async": False}))
    assert (got.status, got.error) == (502, "function_failed"), returns


@pytest.mark.parametrize(
    ("returns", "body"),
    [
        ('{text: "$response"}', b'{"text":"$response"}'),
        ("[{$response: {status: 204}}]", b'[{"$response":{"status":204}}]'),
        ("{in: {$response: {status: 204}}}", b'{"in":{"$response":{"status":204}}}'),
        ('"{\\"$response\\":{}}"', b'{"$response":{}}'),
    ],
)
def test_what_only_names_one_is_an_output(tracker: Tracker, returns: str, body: bytes) -> None:
    deploy(tracker, "plain", f"export default () => ({returns})")
    got = send(tracker, create_endpoint(tracker, "plain", **{"async": False}))
    assert (got.status, got.body) == (200, body)
    assert {name: got.headers[name] for name in FRONT} == FRONT


def test_it_is_an_output_wherever_nobody_waits_at_an_endpoint(tracker: Tracker, environment: EnvironmentRef) -> None:
    """The documented invocation is unchanged; a queued run sends no response, whatever it returns."""
    source = 'export default () => ({$response: {status: 302, headers: {location: "https://example.com"}}})'
    deploy(tracker, "away", source)
    called = invoke(tracker, "away")
    output = {"$response": {"status": 302, "headers": {"location": "https://example.com"}}}
    assert (called.status, called.json["status"], called.json["output"]) == (200, "succeeded", output)
    assert "Location" not in called.headers
    queued = send(tracker, create_endpoint(tracker, "away"))
    assert (queued.status, [*queued.json]) == (202, ["run_id"])
    assert Worker(environment.cluster).run() == 1
    detail = tracker.get("owner", f"/functions/away/runs/{queued.json['run_id']}").json
    assert (detail["status"], detail["output"]) == ("succeeded", output)
    challenge = tracker.api.get(create_endpoint(tracker, "away"))
    assert (challenge.status, challenge.error) == (502, "function_failed"), "a GET waits"


def test_its_size_is_an_outputs(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "large", "export default ({query}) => ({$response: {body: 'x'.repeat(Number(query))}})")
    path = create_endpoint(tracker, "large")
    largest = tracker.api.get(f"{path}?250000")
    assert (largest.status, len(largest.body)) == (200, 250_000)
    assert tracker.api.get(f"{path}?300000").error == "function_failed"
    assert [run.error and run.error["reason"] for run in inbound_runs(tracker)] == [None, "output_too_large"]
