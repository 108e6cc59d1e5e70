"""Inbound endpoints: a provider's webhooks reach a function by a secret URL, and no other request does.

Through the API with real rows and real Deno; tests/functions/test_inbound_over_http.py has what only a socket can send.
"""

import base64
import hashlib
import hmac
import json
import re
import threading
import time
from typing import Any

import orjson
import pytest
from django.conf import settings as configured
from django.db import connections, transaction
from django.test import override_settings

from accounts import audit
from accounts.models import AuditEntry, ServerKey, User
from accounts.tokens import token_format
from accounts.users import service as user_service
from functions.deploy.backup import Functions
from functions.inbound import dispatch
from functions.models import Function, InboundEndpoint, Run
from functions.tasks import verify_endpoints
from functions.triggers import inbound_endpoints, inbound_tokens
from functions.worker import Worker
from platform_site.identity import call_depth, ids
from platform_site.identity.callers import EnvironmentRef
from platform_site.redis import client as redis_client
from projects import services as projects
from projects.models import Member
from tests.projects.conftest import (
    RoundTrips,
    environment_of,
    make_project,
    publishable_key_for,
    token_of,
    trips,  # noqa: F401 - a fixture
)
from tests.rows.conftest import Tracker
from tests.support import valkey as embedded_valkey
from tests.support.client import Answer
from tests.support.flush import flush_redis
from tests.support.functions import deploy, invoke, own_key
from tests.support.inbound import create_endpoint, inbound_runs, listed, make, send
from tests.support.log_lines import listening
from tests.support.rate_limits import address_with_time
from tests.support.unavailable import terminate_own_backend

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

TELL = "export default (input, ctx) => ({...input, caller: ctx.caller})"
LISTS = 'export default async (_, ctx) => (await ctx.rows.list("lists")).data.length'
ADD = 'export default async ({body}, ctx) => ctx.rows.insert("lists", JSON.parse(body))'


def same_refusal(*answers: Answer) -> None:
    """All of them are the 404 that tells nothing."""
    for answer in answers:
        assert (answer.status, answer.json["error"]["message"]) == (404, "There is no such endpoint."), answer.json
        assert not {name for name in answer.headers if name.lower().startswith("x-run")}


# ── Making one, and what comes by it ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.exhaustive
def test_an_endpoint_is_shown_once_and_what_comes_by_it_is_queued(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    owner = tracker.project.memberships.get(role="owner").user_id
    deploy(tracker, "tell", TELL)
    made = make(tracker, "tell", label="Stripe")
    assert (made.status, made.headers["Location"]) == (201, f"/v1/functions/tell/inbound/{made.json['id']}")
    assert made.headers["Cache-Control"] == "no-store"
    url = made.json["url"]
    shown = {name: value for name, value in made.json.items() if name != "url"}
    assert {**shown, "id": "", "created_at": ""} == {
        "id": "", "label": "Stripe", "async": True, "runs_as": owner, "stopped": None, "uses": 0, "last_used_at": None,
        "created_at": "",
    }  # fmt: skip
    assert listed(tracker, "tell") == [shown]
    token = url.rpartition("/")[2]
    assert url == f"{configured.BASE_URL}/v1/inbound/{token}"
    row = InboundEndpoint.objects.using(environment.cluster).get()
    assert bytes(row.token_hash) == hashlib.sha256(token.encode()).digest()
    with connections[environment.cluster].cursor() as cursor:
        cursor.execute("SELECT a::text FROM platform.functions_inboundendpoint a")
        assert token not in str(cursor.fetchall())

    got = send(tracker, f"/v1/inbound/{token}", b'{"id": "evt_1"}', headers={"X-Request-Id": "provider-1"})
    assert (got.status, sorted(got.json)) == (202, ["run_id"])
    assert "Location" not in got.headers
    (run,) = inbound_runs(tracker)
    assert (run.pk, run.phase, run.is_async, run.request_id, run.depth) == (
        got.json["run_id"], "queued", True, "provider-1", 0,
    )  # fmt: skip
    assert Worker(environment.cluster).run() == 1
    detail = tracker.get("owner", f"/functions/tell/runs/{run.pk}").json
    assert (detail["status"], detail["trigger"]) == ("succeeded", "inbound")
    assert detail["output"]["body"] == '{"id": "evt_1"}'
    assert (detail["output"]["caller"]["kind"], detail["output"]["caller"]["id"]) == ("account", owner)
    assert detail["output"]["address_id"] == made.json["id"]
    (after,) = listed(tracker, "tell")
    assert (after["uses"], after["last_used_at"] is not None) == (1, True)
    assert {**after, "uses": 0, "last_used_at": None} == shown
    entry = AuditEntry.objects.get(action="function.inbound_made")
    assert (entry.actor_id, entry.environment_id, entry.detail["label"]) == (
        owner,
        environment.environment_id,
        "Stripe",
    )
    assert token not in json.dumps(entry.detail)
    assert tracker.get("owner", f"/functions/tell/runs/{invoke(tracker, 'tell', {}).json['run_id']}").json[
        "trigger"
    ] == "call", "what is called as ever is a call"  # fmt: skip


def test_the_function_is_told_the_request_as_it_came_and_no_credential(tracker: Tracker) -> None:
    deploy(tracker, "tell", TELL)
    path = create_endpoint(tracker, "tell", **{"async": False})
    body = '{"a":1,  "ä": "\\u00e4",\n"b": 1e400}'.encode()
    got = send(
        tracker,
        f"{path}?b=2&a=%20x&a=&%C3%A4",
        body,
        content_type="text/vnd.Provider; charset=koi8-r",
        headers={
            "X-Hub-Signature-256": "sha256=AbC",
            "Stripe-Signature": "t=1,v1=2",
            "User-Agent": "Provider/1.0",
            "Authorization": "Bearer sk_somebodys",
            "Proxy-Authorization": "Basic eDp5",
            "Cookie": "sessionid=1",
            "Connection": "keep-alive, X-Hop",
            "X-Hop": "1",
            "Keep-Alive": "timeout=5",
            "TE": "trailers",
            "Upgrade": "h2c",
            "X-Platform-Depth": "junk",
            "X-Original-URL": f"{path}?b=2",
            "Referer": f"https://x.example{path.replace('hk_', '%68k_')}",
            "X-Rewritten": f"a=1&path={path.replace('/', '%2F')}",
            "X-Percent": "100%, %68k_",
        },
    ).json
    assert (got["method"], got["query"], got["body"].encode()) == ("POST", "b=2&a=%20x&a=&%C3%A4", body)
    assert got["client"] == "127.0.0.1"
    assert "body_base64" not in got
    headers = got["headers"]
    assert all(name == name.lower() for name in headers)
    assert headers["content-type"] == "text/vnd.Provider; charset=koi8-r"
    assert (headers["x-hub-signature-256"], headers["stripe-signature"]) == ("sha256=AbC", "t=1,v1=2")
    assert headers["content-length"] == str(len(body))
    assert not headers.keys() & {
        "authorization", "proxy-authorization", "cookie", "connection", "x-hop", "keep-alive", "te", "upgrade",
        "x-platform-depth", "x-original-url", "referer", "x-rewritten",
    }  # fmt: skip
    assert headers["x-percent"] == "100%, %68k_"
    assert send(tracker, f"{path}?a=1&path={path.replace('hk', '%68%6b')}").json["query"] == ""
    run, rewritten = inbound_runs(tracker)
    random_part = path[-38:]
    assert random_part not in run.input + rewritten.input
    assert "somebodys" not in run.input
    assert "sessionid" not in run.input


@pytest.mark.parametrize(
    "body", [b"", b"plain", b'{"a": "\\u0000"}', "\ufeff{}".encode(), "line\r\n\ttab \x7f\u2028 \U0001f600".encode()]
)
def test_text_comes_as_text(tracker: Tracker, body: bytes) -> None:
    deploy(tracker, "tell", TELL)
    got = send(tracker, create_endpoint(tracker, "tell", **{"async": False}), body).json
    assert (got["body"].encode(), "body_base64" in got) == (body, False)


@pytest.mark.parametrize("body", [b"\xff\xfe\x00", b"nul \x00 in it", b"\x1b[31m", b"\xed\xa0\x80", bytes(range(256))])
def test_anything_else_comes_in_base64(tracker: Tracker, body: bytes) -> None:
    deploy(tracker, "tell", TELL)
    for content_type in ("application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        got = send(tracker, create_endpoint(tracker, "tell", **{"async": False}), body, content_type=content_type).json
        assert (base64.b64decode(got["body_base64"]), "body" in got) == (body, False)
        assert got["headers"]["content-type"] == content_type


@pytest.mark.exhaustive
def test_the_largest_body_arrives_and_a_larger_one_does_not(tracker: Tracker) -> None:
    deploy(tracker, "size", "export default ({body, body_base64}) => [body?.length, body_base64?.length]")
    path = create_endpoint(tracker, "size", **{"async": False})
    most = configured.MAX_BODY_BYTES
    assert send(tracker, path, b'"' * most).json == [most, None]
    assert send(tracker, path, b"\x00" * most).json == [None, -(-most // 3) * 4]
    too_large = send(tracker, path, b"x" * (most + 1))
    assert (too_large.status, too_large.error) == (413, "payload_too_large")
    assert len(inbound_runs(tracker)) == 2


@pytest.mark.parametrize(
    ("returns", "content_type", "body"),
    [
        ('{challenge: "x"}', "application/json", b'{"challenge":"x"}'),
        ("[1, null]", "application/json", b"[1,null]"),
        ("undefined", "application/json", b"null"),
        ('"<b>1158201444</b> \\u00e4"', "text/plain; charset=utf-8", "<b>1158201444</b> ä".encode()),
        ('""', "text/plain; charset=utf-8", b""),
    ],
)
def test_who_waits_is_answered_with_the_output(tracker: Tracker, returns: str, content_type: str, body: bytes) -> None:
    deploy(tracker, "say", f"export default () => ({returns})")
    got = send(tracker, create_endpoint(tracker, "say", **{"async": False}))
    assert (got.status, got.headers["Content-Type"], got.body) == (200, content_type, body)
    assert (got.headers["Cache-Control"], got.headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
    (run,) = inbound_runs(tracker)
    assert (run.status, run.is_async) == ("succeeded", False)


@pytest.mark.exhaustive
def test_a_failure_makes_the_provider_send_again_and_tells_it_nothing(tracker: Tracker) -> None:
    deploy(tracker, "fail", 'export default () => { throw new Error("the secret is 42") }')
    deploy(tracker, "slow", "export default () => new Promise((r) => setTimeout(r, 60_000))", timeout_ms=100)
    failed = send(tracker, create_endpoint(tracker, "fail", **{"async": False}))
    assert (failed.status, failed.error) == (502, "function_failed")
    assert b"secret" not in failed.body
    late = send(tracker, create_endpoint(tracker, "slow", **{"async": False}))
    assert (late.status, late.error) == (504, "function_timeout")
    first, second = inbound_runs(tracker)
    assert (failed.json["error"]["run_id"], late.json["error"]["run_id"]) == (first.pk, second.pk)
    assert first.error["message"] == "the secret is 42"


@pytest.mark.exhaustive
def test_no_free_slot_is_429_and_leaves_no_run(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "tell", TELL, timeout_ms=1_000)
    path = create_endpoint(tracker, "tell", **{"async": False})
    function = Function.objects.using(environment.cluster).get()
    Run.objects.using(environment.cluster).bulk_create(
        Run(
            environment_id=environment.environment_id, function=function, version=1, phase="executing", is_async=False,
            input="{}", caller_kind="key", caller_id="key_x", slot=slot,
        )
        for slot in range(1, 5)
    )  # fmt: skip
    full = send(tracker, path)
    assert (full.status, full.error, full.headers["Retry-After"]) == (429, "rate_limited", "1")
    assert inbound_runs(tracker) == []
    assert listed(tracker, "tell")[0]["uses"] == 0


def test_get_waits_for_the_answer_whatever_the_endpoint_says(tracker: Tracker) -> None:
    deploy(tracker, "hub", 'export default ({query}) => new URLSearchParams(query).get("hub.challenge")')
    path = create_endpoint(tracker, "hub")
    got = tracker.api.get(f"{path}?hub.mode=subscribe&hub.challenge=1158201444")
    assert (got.status, got.body) == (200, b"1158201444")
    assert [(run.is_async, json.loads(run.input)["method"]) for run in inbound_runs(tracker)] == [(False, "GET")]


def test_other_methods_run_nothing(tracker: Tracker) -> None:
    deploy(tracker, "tell", TELL)
    path = create_endpoint(tracker, "tell")
    head = tracker.api.request("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    other = path[:-1] + ("x" if path[-1] != "x" else "y")
    assert tracker.api._client.head(other).status_code == 404
    options = tracker.api.request("OPTIONS", path)
    assert (options.status, options.headers["Allow"]) == (204, "GET, HEAD, POST, OPTIONS")
    preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert tracker.api.request("OPTIONS", path, headers=preflight).status in (200, 204)
    for method in ("PUT", "PATCH", "DELETE"):
        assert tracker.api.request(method, path, json={}).status == 405
    assert inbound_runs(tracker) == []
    assert listed(tracker, "tell")[0]["uses"] == 0
    page = send(tracker, path, headers={"Origin": "https://evil.example"})
    assert "Access-Control-Allow-Origin" not in page.headers, "no page reads an answer"


def test_a_get_is_not_sent_twice_by_ourselves(tracker: Tracker, environment: EnvironmentRef) -> None:
    """Reads are run again where a connection turned out dead; what a GET sets off here is no reading, and goes on."""
    deploy(tracker, "tell", TELL)
    path = create_endpoint(tracker, "tell")
    assert tracker.api.get(path).status == 200
    terminate_own_backend()
    assert tracker.api.get(path).status == 200
    assert [run.status for run in inbound_runs(tracker)] == ["succeeded", "succeeded"]


def test_a_run_that_postgresql_forgot_is_written_down_as_what_it_was(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    """As `endings.end` does where a crash took the beginning of a synchronous run."""
    deploy(tracker, "slow", "export default () => new Promise((r) => setTimeout(() => r(1), 1_500))")
    path = create_endpoint(tracker, "slow", **{"async": False})

    def lose() -> None:
        deadline = time.monotonic() + 10
        while not (gone := Run.objects.using(environment.cluster).filter(trigger="inbound").delete()[0]):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        connections.close_all()
        assert gone == 1

    losing = threading.Thread(target=lose)
    losing.start()
    assert send(tracker, path).json == 1
    losing.join()
    assert [run.status for run in inbound_runs(tracker)] == ["succeeded"]


PROVIDERS = "whsec-of-the-provider"
SIGNED = """
export default async ({headers, body}, ctx) => {
  const {t, v1} = Object.fromEntries((headers["x-signature"] ?? "").split(",").map((part) => part.split("=")));
  const bytes = (text) => new TextEncoder().encode(text);
  const key = await crypto.subtle.importKey(
    "raw", bytes(ctx.secrets.SIGNING_SECRET), {name: "HMAC", hash: "SHA-256"}, false, ["verify"]);
  const signature = Uint8Array.from((v1 ?? "").match(/../g) ?? [], (pair) => parseInt(pair, 16));
  const isGenuine = await crypto.subtle.verify("HMAC", key, signature, bytes(`${t}.${body}`));
  if (!isGenuine || Math.abs(Date.now() / 1000 - Number(t)) > 300) throw new Error("not signed");
  return JSON.parse(body).id;
};
"""


def signature(body: bytes, at: int, secret: str = PROVIDERS) -> str:
    return f"t={at},v1={hmac.digest(secret.encode(), f'{at}.'.encode() + body, 'sha256').hex()}"


def test_a_signature_over_the_raw_body_can_be_verified(tracker: Tracker) -> None:
    deploy(tracker, "signed", SIGNED, secrets={"SIGNING_SECRET": PROVIDERS})
    path = create_endpoint(tracker, "signed", **{"async": False})
    body, now = '{"id":  "evt_ä"}'.encode(), int(time.time())

    def status(signed: str | None, sent: bytes = body) -> int:
        return send(tracker, path, sent, headers={} if signed is None else {"X-Signature": signed}).status

    good = signature(body, now)
    assert status(good) == 200
    assert status(good[:-1] + ("0" if good[-1] != "0" else "1")) == 502
    assert status(good, body + b" ") == 502
    assert status(signature(body, now, "another")) == 502
    assert status(signature(body, now - 3600)) == 502, "a replay"
    assert status(None) == 502
    assert status("t=,v1=") == 502


# ── As whom it runs ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.exhaustive
def test_it_may_do_what_its_maker_may_and_no_more(tracker: Tracker) -> None:
    deploy(tracker, "lists", LISTS)
    deploy(tracker, "add", ADD)
    row = orjson.dumps({"name": "One", "owner_id": tracker.users["alice"]})
    assert tracker.post("operator", "/rows/lists", orjson.loads(row)).status == 201
    own_key(tracker, "reading", "functions:deploy", "functions:invoke", "rows:read")
    own_key(tracker, "blind", "functions:deploy", "functions:invoke")
    reading = {name: create_endpoint(tracker, name, "reading", **{"async": False}) for name in ("lists", "add")}
    blind = create_endpoint(tracker, "lists", "blind", **{"async": False})
    assert send(tracker, reading["lists"]).json == 1
    assert send(tracker, blind).status == 502
    assert send(tracker, reading["add"], row).status == 502
    assert send(tracker, create_endpoint(tracker, "add", **{"async": False}), row).json["name"] == "One"
    assert len(tracker.get("operator", "/rows/lists").json["data"]) == 2


def gone_key(tracker: Tracker, key_id: str) -> None:
    user_service.revoke_key(ServerKey.objects.get(pk=key_id), actor=audit.SYSTEM)


def test_with_its_maker_an_endpoint_ends_and_its_owner_is_told(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "tell", TELL)
    key_id = own_key(tracker, "maker", "functions:deploy", "functions:invoke")
    path, other = create_endpoint(tracker, "tell", "maker"), create_endpoint(tracker, "tell")
    assert send(tracker, path).status == 202
    assert Worker(environment.cluster).run() == 1
    queued = send(tracker, path).json["run_id"]
    gone_key(tracker, key_id)
    same_refusal(send(tracker, path), tracker.api.get(path))
    assert tracker.api._client.head(path).status_code == 404
    assert send(tracker, other).status == 202
    assert [(each["runs_as"] == key_id, each["stopped"]) for each in listed(tracker, "tell")] == [
        (True, "caller_gone"), (False, None),
    ]  # fmt: skip
    Worker(environment.cluster).run()
    ended = Run.objects.using(environment.cluster).get(pk=queued)
    assert (ended.status, ended.error["reason"]) == ("failed", "caller_gone")
    assert "the run-as identity of its inbound endpoint" in ended.error["message"]
    assert len(inbound_runs(tracker)) == 3


def test_it_ends_with_the_membership_and_comes_back_with_it(tracker: Tracker) -> None:
    deploy(tracker, "tell", TELL)
    dev = user_service.create_user(pool_id=None, email="dev@example.com", password=None, actor=audit.SYSTEM)
    member = Member.objects.create(project=tracker.project, user=dev, role=Member.Role.DEVELOPER)
    tracker.tokens["dev"] = token_of(dev)
    path = create_endpoint(tracker, "tell", "dev")
    assert send(tracker, path).status == 202
    Member.objects.filter(pk=member.pk).update(role=Member.Role.VIEWER)
    same_refusal(send(tracker, path))
    assert [each["stopped"] for each in listed(tracker, "tell")] == ["caller_gone"]
    Member.objects.filter(pk=member.pk).update(role=Member.Role.DEVELOPER)
    assert send(tracker, path).status == 202
    User.objects.filter(pk=dev.pk).update(disabled_at="2026-01-01T00:00:00Z")
    same_refusal(send(tracker, path))


@pytest.mark.exhaustive
def test_deployed_code_never_gets_the_rights_of_the_endpoint_creator(tracker: Tracker) -> None:
    deploy(tracker, "lists", "export default () => 0")
    path = create_endpoint(tracker, "lists", **{"async": False})
    assert send(tracker, path).json == 0
    blind = own_key(tracker, "blind", "functions:deploy", "functions:invoke")
    assert tracker.call("blind", "PUT", "/functions/lists", json={"source": LISTS}).status == 200
    assert send(tracker, path).status == 502, "it reads rows as a key that may not"
    assert [each["runs_as"] for each in listed(tracker, "lists")] == [blind]
    assert tracker.call("owner", "PUT", "/functions/lists", json={"source": LISTS + "\n"}).status == 200
    assert send(tracker, path).json == 0
    tracker.post("blind", "/functions/lists/activate", {"version": 2})
    assert send(tracker, path).status == 502
    services_before = listed(tracker, "lists")
    own_key(tracker, "deployer", "functions:deploy")
    for refused in (
        tracker.call("deployer", "PUT", "/functions/lists", json={"source": LISTS}),
        tracker.post("deployer", "/functions/lists/activate", {"version": 3}),
    ):
        assert (refused.status, refused.error) == (403, "forbidden")
        assert "inbound endpoints" in refused.json["error"]["message"]
    assert tracker.get("owner", "/functions/lists").json["active_version"] == 2
    assert listed(tracker, "lists") == services_before


def test_what_staff_activate_runs_on_as_before(tracker: Tracker, environment: EnvironmentRef) -> None:
    from functions.deploy import service as functions

    deploy(tracker, "tell", TELL)
    deploy(tracker, "tell", TELL + "\n")
    path, before = create_endpoint(tracker, "tell"), listed(tracker, "tell")
    functions.activate(environment, "tell", 1, actor=audit.SYSTEM)
    assert listed(tracker, "tell") == before
    assert send(tracker, path).status == 202


@pytest.mark.exhaustive
def test_a_function_for_users_alone_has_no_endpoint(tracker: Tracker) -> None:
    deploy(tracker, "theirs", TELL, invoke="user")
    refused = make(tracker, "theirs")
    assert (refused.status, refused.error) == (409, "conflict")
    for policy in ("key", "public", None):
        deploy(tracker, f"f-{policy or 'all'}", TELL, invoke=policy)
        assert send(tracker, create_endpoint(tracker, f"f-{policy or 'all'}")).status == 202
    changed = deploy(tracker, "f-key", TELL, invoke="user")
    assert (changed.status, changed.fields) == (422, {"invoke": "has_addresses"})
    assert tracker.get("owner", "/functions/f-key").json["active_version"] == 1


# ── Who may make, see and revoke one ────────────────────────────────────────────────────────────────────────────────


def test_who_may_make_see_and_revoke_one(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "tell", TELL)
    made = make(tracker, "tell").json
    at = f"/functions/tell/inbound/{made['id']}"
    own_key(tracker, "deployer", "functions:deploy")
    own_key(tracker, "invoker", "functions:invoke", "functions:read")
    tracker.tokens["visitor"] = publishable_key_for(tracker.environment_id)
    for who in ("viewer", "alice", "key", "deployer", "invoker", "visitor"):
        assert make(tracker, "tell", who).status == 403, who
    for who in ("viewer", "alice", "key", "invoker", "visitor"):
        assert tracker.delete(who, at).status == 403, who
    for who in ("alice", "key", "deployer", "visitor"):
        assert tracker.get(who, "/functions/tell/inbound").status == 403, who
    for who in ("viewer", "invoker"):
        assert [each["id"] for each in tracker.get(who, "/functions/tell/inbound").json["data"]] == [made["id"]]
    assert InboundEndpoint.objects.using(environment.cluster).count() == 1
    assert tracker.delete("deployer", at).status == 204, "removing needs no right to invoke"


@pytest.mark.exhaustive
def test_other_tenants_find_no_endpoints(tracker: Tracker) -> None:
    deploy(tracker, "tell", TELL)
    made = make(tracker, "tell").json
    eve = user_service.create_user(pool_id=None, email="eve@example.com", password=None, actor=audit.SYSTEM)
    theirs = environment_of(make_project(eve, "Theirs")).pk
    tracker.tokens["eve"] = token_of(eve)
    for environment in (tracker.environment_id, theirs):
        for method, path in (
            ("GET", "/functions/tell/inbound"),
            ("POST", "/functions/tell/inbound"),
            ("DELETE", f"/functions/tell/inbound/{made['id']}"),
        ):
            answer = tracker.api.request(
                method, f"/v1{path}", token=tracker.tokens["eve"], environment=environment, body=b"{}"
            )
            assert answer.status == 404, (method, environment)
    tracker.api.put(
        "/v1/functions/tell", token=tracker.tokens["eve"], environment=theirs, json={"source": TELL}
    )  # a function of the same name
    there = f"/v1/functions/tell/inbound/{made['id']}"
    assert tracker.api.delete(there, token=tracker.tokens["eve"], environment=theirs).status == 404
    assert len(listed(tracker, "tell")) == 1


@pytest.mark.parametrize(
    "body",
    [{"label": "x" * 101}, {"label": 5}, {"label": None}, {"async": "yes"}, {"async": None}, {"token": "mine"}],
)
def test_what_is_no_endpoint_is_refused(tracker: Tracker, environment: EnvironmentRef, body: dict[str, Any]) -> None:
    deploy(tracker, "tell", TELL)
    refused = make(tracker, "tell", **body)
    assert (refused.status, [*refused.fields]) == (422, [*body])
    assert not InboundEndpoint.objects.using(environment.cluster).exists()


@pytest.mark.exhaustive
def test_a_function_has_so_many_at_most(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "tell", TELL)
    assert tracker.call("owner", "POST", "/functions/tell/inbound").status == 201, "the body may be left out"
    ids_of = [make(tracker, "tell", label=f"n{number}").json["id"] for number in range(9)]
    full = make(tracker, "tell")
    assert (full.status, full.error) == (422, "quota_exceeded")
    assert len(listed(tracker, "tell")) == 10
    assert [each["label"] for each in listed(tracker, "tell")] == ["", *(f"n{number}" for number in range(9))]
    assert tracker.delete("owner", f"/functions/tell/inbound/{ids_of[0]}").status == 204
    assert make(tracker, "tell").status == 201
    assert make(tracker, "missing").status == 404


def test_an_endpoint_made_twice_under_one_key_is_one(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "tell", TELL)
    first, again = (
        tracker.post("owner", "/functions/tell/inbound", {}, headers={"Idempotency-Key": "k-1234567890"})
        for _ in range(2)
    )
    assert (first.json, again.headers["Idempotency-Replayed"]) == (again.json, "true")
    assert InboundEndpoint.objects.using(environment.cluster).count() == 1


# ── The end of one ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_revoked_endpoint_is_gone_with_the_next_request(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "tell", TELL)
    made = make(tracker, "tell", label="old").json
    path, other = made["url"].removeprefix(configured.BASE_URL), create_endpoint(tracker, "tell")
    assert (send(tracker, path).status, send(tracker, other).status) == (202, 202)
    assert tracker.delete("owner", f"/functions/tell/inbound/{made['id']}").status == 204
    same_refusal(send(tracker, path), tracker.api.get(path))
    assert send(tracker, other).status == 202
    assert [each["id"] for each in listed(tracker, "tell")] != [made["id"]]
    assert tracker.delete("owner", f"/functions/tell/inbound/{made['id']}").status == 404
    assert tracker.delete("owner", "/functions/tell/inbound/inb_nonsense").status == 404
    entry = AuditEntry.objects.get(action="function.inbound_revoked")
    assert (entry.detail["address"], entry.detail["label"]) == (made["id"], "old")
    assert len(inbound_runs(tracker)) == 3


def test_a_reader_of_the_old_state_cannot_bring_it_back(tracker: Tracker, environment: EnvironmentRef) -> None:
    """A reader of the old row fills Redis after the commit: the marker was there first."""
    deploy(tracker, "tell", TELL)
    made = make(tracker, "tell").json
    path = made["url"].removeprefix(configured.BASE_URL)
    token_hash = inbound_tokens.digest(path.rpartition("/")[2])
    late = inbound_endpoints.look_up(environment, token_hash)
    assert late is not None
    tracker.delete("owner", f"/functions/tell/inbound/{made['id']}")
    redis_client.current().fill(inbound_endpoints.cache_key(token_hash), inbound_endpoints.to_bytes(late))
    same_refusal(send(tracker, path))


def test_a_revocation_that_was_rolled_back_revokes_nothing(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "tell", TELL)
    path = create_endpoint(tracker, "tell")
    function = Function.objects.using(environment.cluster).get()
    with transaction.atomic(using=environment.cluster):
        inbound_endpoints.delete_all(environment.cluster, function.pk)
        transaction.set_rollback(True, using=environment.cluster)
    assert send(tracker, path).status == 202


@pytest.mark.exhaustive
def test_endpoint_is_removed_with_its_function_and_not_reused_by_name(
    tracker: Tracker, environment: EnvironmentRef
) -> None:
    deploy(tracker, "tell", TELL)
    path = create_endpoint(tracker, "tell")
    assert send(tracker, path).status == 202
    assert tracker.delete("owner", "/functions/tell").status == 204
    same_refusal(send(tracker, path))
    deploy(tracker, "tell", TELL)
    same_refusal(send(tracker, path), tracker.api.get(path))
    assert not InboundEndpoint.objects.using(environment.cluster).exists()
    assert listed(tracker, "tell") == []


def test_the_release_before_deletes_functions_that_have_some(tracker: Tracker, environment: EnvironmentRef) -> None:
    """It has no code for endpoints: PostgreSQL deletes them with it."""
    deploy(tracker, "tell", TELL)
    path = create_endpoint(tracker, "tell")
    Function.objects.using(environment.cluster).update(environment_id=None)  # it has a long history
    same_refusal(send(tracker, path))
    with transaction.atomic(using=environment.cluster), connections[environment.cluster].cursor() as cursor:
        for table in ("version", "secret", "run"):
            cursor.execute(f"DELETE FROM platform.functions_{table}")
        cursor.execute("DELETE FROM platform.functions_function")
    assert not InboundEndpoint.objects.using(environment.cluster).exists()
    same_refusal(send(tracker, path))


@pytest.mark.exhaustive
def test_it_goes_with_its_project_and_pauses_with_it(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "tell", TELL)
    path = create_endpoint(tracker, "tell")
    assert send(tracker, path).status == 202
    projects.suspend_project(tracker.project.pk, reason="abuse", actor=audit.SYSTEM)
    paused = send(tracker, path)
    assert (paused.status, paused.error) == (403, "project_suspended")
    projects.resume_project(tracker.project.pk, actor=audit.SYSTEM)
    assert send(tracker, path).status == 202
    assert len(inbound_runs(tracker)) == 2
    assert tracker.api.delete(f"/v1/projects/{tracker.project.pk}", token=tracker.tokens["owner"]).status == 204
    same_refusal(send(tracker, path))


@pytest.mark.exhaustive
def test_a_branch_has_none(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "tell", TELL)
    path = create_endpoint(tracker, "tell")
    made = tracker.api.post(
        f"/v1/projects/{tracker.project.pk}/environments",
        token=tracker.tokens["owner"],
        json={"name": "preview", "from": "production"},
    )
    assert made.status == 201, made.json
    there = tracker.api.get("/v1/functions/tell/inbound", token=tracker.tokens["owner"], environment=made.json["id"])
    assert (there.status, there.json["data"]) == (200, [])
    assert send(tracker, path, environment=made.json["id"]).status == 202, "a header names nothing here"
    assert [run.environment_id for run in inbound_runs(tracker)] == [environment.environment_id]


def test_a_backup_has_none(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "tell", TELL)
    made = make(tracker, "tell", label="only-in-the-label").json
    written = json.dumps({name: list(records) for name, records in Functions().dump(environment).items()})
    assert TELL in json.loads(written)["function_versions"][0]["source"]
    assert made["id"] not in written
    assert "only-in-the-label" not in written


def test_one_that_is_known_is_found_by_one_trip_to_redis(tracker: Tracker, trips: RoundTrips) -> None:  # noqa: F811
    deploy(tracker, "tell", TELL)
    path = create_endpoint(tracker, "tell")
    assert send(tracker, path).status == 202
    trips.reset()
    assert send(tracker, path).status == 202
    assert trips.redis == 1
    assert not [each for each in trips.statements if "token_hash" in each]
    assert len(trips.statements) <= 4, "the place, the maker and their role; and that it was used"


# ── Guessing, flooding, looping, leaking ────────────────────────────────────────────────────────────────────────────


def forged(environment_id: str) -> str:
    """Made by an attacker who knows the form of tokens, and not the platform's keys."""
    return f"/v1/inbound/{token_format.make('hk_' + environment_id.removeprefix('env_'), 32)}"


def gone(environment_id: str) -> str:
    """As one that was made here and revoked."""
    return f"/v1/inbound/{inbound_tokens.make(environment_id)}"


def with_unknown_mac(environment: EnvironmentRef, path: str) -> str:
    """The same endpoint with a token whose MAC no current key verifies."""
    old, token = forged(environment.environment_id), path.rpartition("/")[2]
    row = InboundEndpoint.objects.using(environment.cluster).filter(token_hash=inbound_tokens.digest(token))
    assert row.update(token_hash=inbound_tokens.digest(old.rpartition("/")[2])) == 1
    return old


def test_what_is_no_endpoint_gets_one_answer(tracker: Tracker) -> None:
    deploy(tracker, "tell", TELL)
    path = create_endpoint(tracker, "tell")
    token = path.rpartition("/")[2]
    other = environment_of(tracker.project, "development").pk
    moved = f"/v1/inbound/hk_{other.removeprefix('env_')}{token[29:]}"
    same_refusal(
        send(tracker, forged(tracker.environment_id)),
        send(tracker, forged(other)),
        send(tracker, forged(ids.new("env"))),
        send(tracker, moved),
        send(tracker, path.upper().replace("/V1/INBOUND/HK_", "/v1/inbound/hk_")),
        send(tracker, path + "x"),
        send(tracker, path[:-1]),
        send(tracker, "/v1/inbound/hk_"),
        send(tracker, "/v1/inbound/" + "a" * 5000),
        send(tracker, "/v1/inbound/%F0%9F%98%80"),
        send(tracker, f"/v1/inbound/{InboundEndpoint.objects.using(tracker.project.cluster).get().pk}"),
    )
    for wrong in (f"{path}/", f"{path}/x", "/v1/inbound", "/v1/inbound/", f"/v1/functions/tell/inbound{path[11:]}"):
        assert send(tracker, wrong).status in (401, 404, 405), wrong
    assert tracker.api.get("/v1/rows/lists", token=token).status == 401, "it is no credential of the API"
    assert inbound_runs(tracker) == []


@pytest.mark.exhaustive
def test_guesses_are_counted_and_what_is_revoked_keeps_no_neighbour_out(tracker: Tracker, settings: Any) -> None:
    """A provider sends for many tenants from one IP address: what it still sends to one environment's deleted endpoints is that
    environment's business."""
    settings.RATE_LIMIT_FACTOR = 1000
    deploy(tracker, "tell", TELL)
    met = create_endpoint(tracker, "tell")
    eve = user_service.create_user(pool_id=None, email="eve@example.com", password=None, actor=audit.SYSTEM)
    theirs = environment_of(make_project(eve, "Theirs")).pk
    hers = {"token": token_of(eve), "environment": theirs}
    tracker.api.put("/v1/functions/tell", json={"source": TELL}, **hers)
    neighbour = tracker.api.post("/v1/functions/tell/inbound", json={}, **hers).json["url"]
    neighbour = neighbour.removeprefix(configured.BASE_URL)
    provider = address_with_time(tracker.environment_id)
    settings.RATE_LIMIT_FACTOR = 1
    assert send(tracker, met, remote_addr=provider).status == 202
    dead = [send(tracker, forged(tracker.environment_id), remote_addr=provider).status for _ in range(121)]
    assert (dead[:120], dead[120]) == ([404] * 120, 429)
    limited = send(tracker, forged(tracker.environment_id), remote_addr=provider)
    assert (limited.error, int(limited.headers["Retry-After"]) > 0) == ("rate_limited", True)
    name = inbound_endpoints.cache_key(inbound_tokens.digest(met.rpartition("/")[2]))
    assert embedded_valkey.client(configured.LAYOUT).delete(name) == 1, "as after a minute of silence"
    assert send(tracker, met, remote_addr=provider).status == 202, "what works goes on"
    assert send(tracker, neighbour, remote_addr=provider).status == 202
    assert send(tracker, forged(tracker.environment_id), remote_addr="203.0.113.10").status == 404


def as_after_a_minute(path: str) -> None:
    """It was idle for a minute."""
    embedded_valkey.client(configured.LAYOUT).delete(
        inbound_endpoints.cache_key(inbound_tokens.digest(path.rpartition("/")[2]))
    )


@pytest.mark.exhaustive
def test_nobody_has_a_provider_kept_out_of_somebody_elses_endpoint(
    tracker: Tracker,
    settings: Any,
    trips: RoundTrips,  # noqa: F811
) -> None:
    """An attacker who makes a provider send to invented URLs uses up nothing that an endpoint is checked against."""
    deploy(tracker, "tell", TELL)
    fresh, met = create_endpoint(tracker, "tell"), create_endpoint(tracker, "tell")
    assert send(tracker, met).status == 202
    provider = address_with_time(tracker.environment_id, dispatch._UNKNOWN_ENVIRONMENT)
    settings.RATE_LIMIT_FACTOR = 1
    junk = {send(tracker, f"/v1/inbound/hk_junk{n}", remote_addr=provider).status for n in range(140)}
    assert junk == {404}, "it costs no look-up"
    for environment_id in (lambda: tracker.environment_id, lambda: ids.new("env")):
        unknown = [send(tracker, forged(environment_id()), remote_addr=provider).status for _ in range(140)]
        assert unknown == [404] * 120 + [429] * 20
    for path in (fresh, met):
        as_after_a_minute(path)
        assert send(tracker, path, remote_addr=provider).status == 202
    assert len(inbound_runs(tracker)) == 3
    trips.reset()
    assert send(tracker, forged(tracker.environment_id), remote_addr=provider).status == 429
    assert trips.statements == [], "guessing causes no work for PostgreSQL"


@pytest.mark.exhaustive
def test_when_redis_was_emptied_guesses_keep_no_endpoint_out(
    tracker: Tracker,
    settings: Any,
    trips: RoundTrips,  # noqa: F811
) -> None:
    deploy(tracker, "tell", TELL)
    path, queued = create_endpoint(tracker, "tell", **{"async": False}), create_endpoint(tracker, "tell")
    flush_redis()
    settings.RATE_LIMIT_FACTOR = 1
    provider = address_with_time(tracker.environment_id, dispatch._UNKNOWN_ENVIRONMENT)
    for environment_id in (lambda: tracker.environment_id, lambda: ids.new("env")):
        unknown = [send(tracker, forged(environment_id()), remote_addr=provider).status for _ in range(125)]
        assert unknown == [404] * 120 + [429] * 5
    trips.reset()
    assert send(tracker, forged(tracker.environment_id), remote_addr=provider).status == 429
    assert trips.statements == [], "a guess asks no database"
    answers = [send(tracker, each, remote_addr=provider) for each in (path, queued)]
    assert [each.status for each in answers] == [200, 202], [each.json for each in answers]


@pytest.mark.exhaustive
def test_checks_of_revoked_endpoints_are_limited_per_environment(
    tracker: Tracker,
    environment: EnvironmentRef,
    settings: Any,
    trips: RoundTrips,  # noqa: F811
) -> None:
    deploy(tracker, "tell", TELL)
    path, old = create_endpoint(tracker, "tell"), with_unknown_mac(environment, create_endpoint(tracker, "tell"))
    flush_redis()
    settings.RATE_LIMIT_FACTOR = 1
    for environment_id in (environment_of(tracker.project, "development").pk, ids.new("env")):
        many = [send(tracker, gone(environment_id)).status for _ in range(122)]
        assert many == [404] * 120 + [429] * 2
        trips.reset()
        assert send(tracker, gone(environment_id)).status == 429
        assert trips.statements == []
    assert [send(tracker, each).status for each in (path, old)] == [202, 202]


@pytest.mark.exhaustive
def test_token_with_dropped_key_is_treated_like_an_old_token(
    tracker: Tracker, environment: EnvironmentRef, settings: Any
) -> None:
    deploy(tracker, "tell", TELL)
    path = create_endpoint(tracker, "tell")
    token, keys = path.rpartition("/")[2], list(configured.ENCRYPTION_KEYS)
    settings.ENCRYPTION_KEYS = ["ab" * 32, *keys]
    assert inbound_tokens.is_valid(token)
    settings.ENCRYPTION_KEYS = ["ab" * 32]
    assert not inbound_tokens.is_valid(token)
    settings.RATE_LIMIT_FACTOR = 1
    unknown = [send(tracker, forged(tracker.environment_id)).status for _ in range(121)]
    assert unknown == [404] * 120 + [429]
    settings.ENCRYPTION_KEYS = ["ab" * 32, *keys[1:]]
    assert not inbound_tokens.is_valid(token)
    assert send(tracker, path).status == 202, "its proof is in Redis"


def test_no_part_of_a_token_can_be_changed(environment: EnvironmentRef) -> None:
    token = inbound_tokens.make(environment.environment_id)
    assert (inbound_tokens.environment_of(token), inbound_tokens.is_valid(token)) == (environment.environment_id, True)
    assert re.fullmatch(r"hk_[0-9a-z]{26}[0-9A-Za-z]{38}", token)
    for at in range(len("hk_"), len(token) - 6):
        other = "1" if token[at] == "0" else "0"
        changed = token_format.checked(token[:at] + other + token[at + 1 : -6])
        assert inbound_tokens.environment_of(changed) is None or not inbound_tokens.is_valid(changed), at
    assert not inbound_tokens.is_valid(forged(environment.environment_id).rpartition("/")[2])


@pytest.mark.exhaustive
def test_redis_is_told_again_which_endpoints_there_are(
    tracker: Tracker, environment: EnvironmentRef, settings: Any
) -> None:
    deploy(tracker, "tell", TELL)
    made = [make(tracker, "tell").json for _ in range(2)]
    path, revoked = (with_unknown_mac(environment, each["url"].removeprefix(configured.BASE_URL)) for each in made)
    assert tracker.delete("owner", f"/functions/tell/inbound/{made[1]['id']}").status == 204
    for each in (path, revoked):
        embedded_valkey.client(configured.LAYOUT).delete(
            *inbound_endpoints.names_of(inbound_tokens.digest(each.rpartition("/")[2]))
        )
    settings.RATE_LIMIT_FACTOR = 1
    unknown = [send(tracker, forged(tracker.environment_id)).status for _ in range(121)]
    assert unknown == [404] * 120 + [429]
    assert send(tracker, path).status == 429, "it could be any"
    verify_endpoints(environment.cluster)
    assert send(tracker, path).status == 202
    assert send(tracker, revoked).status == 429


def test_what_is_not_there_is_looked_up_once(tracker: Tracker, environment: EnvironmentRef, trips: RoundTrips) -> None:  # noqa: F811
    deploy(tracker, "tell", TELL)
    made = make(tracker, "tell").json
    revoked, unknown = made["url"].removeprefix(configured.BASE_URL), forged(tracker.environment_id)
    InboundEndpoint.objects.using(environment.cluster).all().delete()  # and its proof is still there
    for path in (revoked, unknown):
        same_refusal(send(tracker, path))
        trips.reset()
        same_refusal(send(tracker, path), tracker.api.get(path))
        assert trips.statements == []
    name = inbound_endpoints.verification_key(inbound_tokens.digest(revoked.rpartition("/")[2]))
    assert embedded_valkey.client(configured.LAYOUT).get(name) != inbound_endpoints.VERIFIED


@pytest.mark.exhaustive
def test_a_revoked_endpoint_is_bounded_like_any_that_is_not_there(
    tracker: Tracker,
    settings: Any,
    trips: RoundTrips,  # noqa: F811
) -> None:
    deploy(tracker, "tell", TELL)
    made = [make(tracker, "tell").json for _ in range(2)]
    first, second = (each["url"].removeprefix(configured.BASE_URL) for each in made)
    assert send(tracker, first).status == 202
    assert tracker.delete("owner", f"/functions/tell/inbound/{made[0]['id']}").status == 204
    assert tracker.delete("owner", "/functions/tell").status == 204
    provider = address_with_time(f"{dispatch._CREATED_HERE}\0{tracker.environment_id}")
    settings.RATE_LIMIT_FACTOR = 1
    others = [send(tracker, gone(tracker.environment_id), remote_addr=provider).status for _ in range(121)]
    assert others == [404] * 120 + [429]
    for path in (first, second):
        as_after_a_minute(path)  # and the mark is gone
        trips.reset()
        assert send(tracker, path, remote_addr=provider).status == 429
        assert trips.statements == []


def test_each_client_has_a_share_of_its_own(tracker: Tracker, settings: Any) -> None:
    deploy(tracker, "tell", TELL)
    path, other = create_endpoint(tracker, "tell"), create_endpoint(tracker, "tell")
    settings.RATE_LIMIT_FACTOR = 0.01  # of 300
    leaked = [send(tracker, path, remote_addr="198.51.100.7") for _ in range(4)]
    assert [answer.status for answer in leaked] == [202, 202, 202, 429]
    assert leaked[-1].headers["Retry-After"]
    assert leaked[0].headers["RateLimit-Policy"] == '"caller";q=3;w=60'
    assert send(tracker, path, remote_addr="203.0.113.9").status == 202, "the provider's is another"
    assert send(tracker, other, remote_addr="198.51.100.7").status == 202
    assert len(inbound_runs(tracker)) == 5


def test_a_circle_is_cut_and_a_made_up_depth_is_none(tracker: Tracker) -> None:
    deploy(tracker, "tell", TELL)
    path = create_endpoint(tracker, "tell")

    def with_depth(value: str) -> Answer:
        return send(tracker, path, headers={call_depth.HEADER: value})

    assert with_depth(call_depth.sign(3, tracker.environment_id)).status == 202
    assert with_depth(call_depth.sign(3, ids.new("env"))).status == 202
    assert with_depth("7.29948640.q83vEjRWeJCrze8SNFZ4kA").status == 202
    cut = with_depth(call_depth.sign(call_depth.MAX_DEPTH, tracker.environment_id))
    assert (cut.status, cut.error) == (409, "conflict")
    assert [run.depth for run in inbound_runs(tracker)] == [3, 0, 0]


def test_the_token_is_in_no_line_and_no_figure(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "tell", TELL)
    path = create_endpoint(tracker, "tell")
    token = path.rpartition("/")[2]
    with listening() as lines:
        named = send(tracker, path, headers={"X-Request-Id": token, "Referer": f"https://x.example{path}"})
        assert (named.status, named.headers["X-Request-Id"] == token) == (202, False)
        assert send(tracker, f"{path}/x").status == 404
        with connections[environment.cluster].cursor() as cursor:
            cursor.execute("ALTER TABLE platform.functions_run RENAME COLUMN depth TO depth_")
        try:
            broken = send(tracker, path)
        finally:
            with connections[environment.cluster].cursor() as cursor:
                cursor.execute("ALTER TABLE platform.functions_run RENAME COLUMN depth_ TO depth")
        assert (broken.status, broken.error) == (500, "internal")
    written = "\n".join(lines.text)
    assert "/v1/inbound/<str:token>" in written
    assert "unexpected" in written
    assert token not in written
    assert token not in tracker.api._client.get("/metrics").content.decode()
    assert token.encode() not in broken.body
    assert all(token not in run.input and token != run.request_id for run in inbound_runs(tracker))


def test_a_use_that_cannot_be_noted_refuses_nothing(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "tell", TELL)
    path = create_endpoint(tracker, "tell")
    with connections[environment.cluster].cursor() as cursor:
        cursor.execute("ALTER TABLE platform.functions_inboundendpoint RENAME COLUMN uses TO uses_")
        try:
            assert send(tracker, path).status == 202
        finally:
            cursor.execute("ALTER TABLE platform.functions_inboundendpoint RENAME COLUMN uses_ TO uses")
    assert len(inbound_runs(tracker)) == 1


def test_without_redis_it_answers_and_a_revoked_one_does_not(tracker: Tracker) -> None:
    deploy(tracker, "tell", TELL)
    made = make(tracker, "tell").json
    path = made["url"].removeprefix(configured.BASE_URL)
    with override_settings(REDIS_URL="unix:///nowhere/valkey.sock"):
        assert send(tracker, path).status == 202
        assert tracker.delete("owner", f"/functions/tell/inbound/{made['id']}").status == 204
        same_refusal(send(tracker, path), send(tracker, forged(tracker.environment_id)))
    same_refusal(send(tracker, path))


def test_a_record_of_another_release_is_looked_up_anew(tracker: Tracker, environment: EnvironmentRef) -> None:
    deploy(tracker, "tell", TELL)
    path = create_endpoint(tracker, "tell")
    name = inbound_endpoints.cache_key(inbound_tokens.digest(path.rpartition("/")[2]))
    for kept in (b"[]", b"{}", b"junk", b"\xff", orjson.dumps(["inb_x", "tell", True, "key", "key_x", "gold"])):
        redis_client.current().put({name: kept}, 60)
        assert send(tracker, path).status == 202
