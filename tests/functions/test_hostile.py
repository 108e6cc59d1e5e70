"""Functions that attack what runs them, through the API: whatever they do, their run ends and is written down, the next
call is served, and no other data or host is read, written or called.
"""

import re
import socket
import threading
from typing import Any

import pytest
from django.db import connections, transaction

from functions.models import Run
from functions.runtime.channel import MAX_FRAME_BYTES
from platform_site import outbound
from platform_site.identity import call_depth
from platform_site.postgres.row_access import row_access
from tests.rows.conftest import Tracker
from tests.support.client import Answer
from tests.support.concurrency import waiting_for_locks
from tests.support.functions import SUM, deploy, invoke, run_body
from tests.support.receiver import Receiver, answer
from tests.support.service import wait_for
from tests.support.timing import within
from tests.support.tracker import DOCUMENT
from webhooks.delivery.relay import relay_batch
from webhooks.models import Delivery

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


@pytest.mark.exhaustive
def test_text_that_postgresql_cannot_keep_ends_no_worse_than_any_other(tracker: Tracker) -> None:
    got, run = run_body(tracker, "console.log('a\\0b', '\\ud800'); return 'a\\0b'")
    assert (got.status, got.json["output"], run["output"]) == (200, "a\0b", "a\0b")
    assert run["logs"][0]["text"] == "a\N{REPLACEMENT CHARACTER}b \N{REPLACEMENT CHARACTER}"
    got, run = run_body(tracker, "const e = new Error('x\\0\\ud800'); e.name = '\\0'; throw e")
    assert (got.json["status"], "\0" in run["error"]) == ("failed", False)
    assert tracker.get("owner", "/functions/f/runs").status == 200


def test_an_integer_above_two_to_the_53_survives_get_and_update(tracker: Tracker) -> None:
    big = 2**53 + 1
    body = (
        f"const owner_id = '{tracker.users['alice']}';"
        " const list = await ctx.rows.insert('lists', {name: 'Home', owner_id});"
        f" const made = await ctx.rows.insert('tasks', {{title: 'big', list_id: list.id, owner_id, priority: {big}n}});"
        " const row = await ctx.rows.get('tasks', made.id);"
        " await ctx.rows.update('tasks', row.id, {title: 'bigger', priority: row.priority + 1n});"
        " return (await ctx.rows.get('tasks', row.id)).priority;"
    )
    got, run = run_body(tracker, body)
    assert (got.json.get("output"), run.get("output")) == (big + 1, big + 1), got.json


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("output", "status"),
    [
        ("'\\ud800'", "failed"),  # half a surrogate pair
        ("{['\\udfff']: 1}", "failed"),
        ("(JSON as any).rawJSON('1e400')", "failed"),  # a number that is not read
        ("(() => { let a: any = 1; for (let i = 0; i < 2000; i++) a = [a]; return a })()", "failed"),
        ("10n", "succeeded"),
        ("100000000000000000000", "succeeded"),  # beyond 64 bits
        ("-0", "succeeded"),
        ("{toJSON() { throw new Error('no') }}", "failed"),
        ("new Proxy({}, {ownKeys() { throw null }})", "failed"),
        ("{then(_: any, no: any) { no(new Error('thenable')) }}", "failed"),
        ("Symbol('x')", "succeeded"),
        ("() => 1", "succeeded"),
    ],
)
def test_an_output_of_any_kind_is_answered_and_read_again(tracker: Tracker, output: str, status: str) -> None:
    got, run = run_body(tracker, f"return {output}")
    assert (got.status, got.json["status"], run["status"]) == (200, status, status), got.json
    assert run["output"] == got.json.get("output")
    assert ("output" in got.json) == (status == "succeeded")


@pytest.mark.exhaustive
def test_an_output_of_a_hundred_megabytes_costs_its_own_run(tracker: Tracker) -> None:
    got, run = run_body(tracker, "return 'x'.repeat(100e6)")
    assert (got.status, got.json["status"]) == (200, "failed")
    assert run["error"].split(":")[0] in ("OutputTooLarge", "OutOfMemory")
    got, run = run_body(tracker, "return 'x'.repeat(300_000)")
    assert run["error"].split(":")[0] == "OutputTooLarge"
    assert run["output"] is None


QUESTIONS = [
    "ctx.rows.insert('tasks', {title: '\\ud800'})",
    "ctx.rows.insert('tasks', {title: 'a\\0b'})",
    "ctx.rows.insert('tasks', {priority: (JSON as any).rawJSON('1e400')})",
    "ctx.rows.insert('tasks', {priority: (JSON as any).rawJSON('9'.repeat(5000))})",
    "ctx.rows.insert('tasks', (() => { let a: any = 1; for (let i = 0; i < 5000; i++) a = [a]; return {meta: a} })())",
    "ctx.rows.insert('tasks', (() => { const a: any = {}; a.a = a; return a })())",
    "ctx.rows.insert('tasks', {title: 10n})",
    "ctx.rows.insert('tasks', null)",
    "ctx.rows.insert('tasks', [])",
    "ctx.rows.insert('tasks', 'row')",
    "ctx.rows.insert('tasks')",
    "ctx.rows.insert('no_such_table', {})",
    "ctx.rows.insert({}, {})",
    "ctx.rows.upsert('tasks', [])",
    "ctx.rows.upsert('tasks', {id: 'x', title: 'y'})",
    "ctx.rows.upsert('tasks', {title: 'y'}, {onConflict: 5})",
    "ctx.rows.upsert('tasks', {title: 'y'}, {onConflict: 'internal'})",
    "ctx.rows.upsert('tasks', {title: 'y'}, null)",
    "ctx.rows.updateMany('tasks', null, {})",
    "ctx.rows.updateMany('tasks', {where: '{}', order: 'id'}, {})",
    "ctx.rows.updateMany('tasks', {where: {}}, [])",
    "ctx.rows.updateMany('tasks', {where: {}, cursor: {}}, {})",
    "ctx.rows.removeMany('tasks')",
    "ctx.rows.removeMany('tasks', [])",
    "ctx.rows.removeMany('tasks', {where: {}, limit: 10.5})",
    "ctx.rows.list('tasks', {count: 'some'})",
    "ctx.rows.list('tasks', {count: true})",
    "ctx.rows.list('tasks', {count: ['exact']})",
    "ctx.rows.removeMany('tasks', {where: {}, limit: 1e9})",
    "ctx.rows.update('tasks', 'x', null)",
    "ctx.rows.update('tasks', {$ne: ''}, {})",
    "ctx.rows.update('tasks', 'x', {title: 'y'})",
    "ctx.rows.remove('tasks', ['x'])",
    "ctx.rows.remove('tasks', 'x')",
    "ctx.rows.get('tasks', '\\0')",
    "ctx.rows.get('tasks', 'x'.repeat(1e6))",
    "ctx.rows.get('tasks', 'x'.repeat(3e6))",
    "ctx.rows.get('tasks', 5)",
    "ctx.rows.get('__proto__', 'x')",
    "ctx.rows.get('platform.functions_run', 'x')",
    "ctx.rows.get('tasks\\\"; DROP TABLE x; --', 'x')",
    "ctx.rows.get('tasks', 'x', {with: 5})",
    "ctx.rows.list('tasks', {order: 5})",
    "ctx.rows.list('tasks', {cursor: {}})",
    "ctx.rows.list('tasks', {cursor: 'x'})",
    "ctx.rows.list('tasks', {limit: 1e9})",
    "ctx.rows.list('tasks', {limit: '1'})",
    "ctx.rows.list('tasks', {where: 'not json'})",
    "ctx.rows.list('tasks', {where: {internal: 'x'}})",
    "ctx.rows.list('tasks', {where: {title: {$regex: '.*'}}})",
    "ctx.rows.list('tasks', {where: 5})",
    "ctx.rows.list('tasks', {principal: 'server'})",
    "ctx.rows.list('tasks', 'query')",
    "ctx.fetch('http://example.com/')",
    "ctx.fetch('file:///etc/passwd')",
    "ctx.fetch('')",
    "ctx.fetch({})",
    "ctx.fetch('http://example.com/', {body: 'x'.repeat(5e6)})",
]


def test_a_question_of_any_kind_gets_a_refusal_with_a_code(tracker: Tracker) -> None:
    """As an app user: nothing here is granted, nothing is an internal error, and no question ends the call."""
    tries = ",".join(f"async () => {question}" for question in QUESTIONS)
    body = f"""const said: string[] = [];
        for (const ask of [{tries}]) {{
            try {{ await ask(); said.push("granted") }} catch (error: any) {{ said.push(error.code ?? error.name) }}
        }}
        return said"""
    got, run = run_body(tracker, body, who="alice", timeout_ms=10_000)
    assert got.json["status"] == "succeeded", run
    said = dict(zip(QUESTIONS, got.json["output"], strict=True))
    codes = {"validation_failed", "invalid_request", "not_found", "refused", "payload_too_large", "TypeError"}
    assert {question: code for question, code in said.items() if code not in codes} == {}
    assert said["ctx.rows.get('tasks', 'x'.repeat(3e6))"] == "payload_too_large"


@pytest.mark.exhaustive
def test_no_run_asks_for_ever(tracker: Tracker) -> None:
    body = """let codes: string[] = [];
        for (let i = 0; i < 1010; i++) try { await ctx.rows.get('nothing', 'x') } catch (error: any) { codes.push(error.code) }
        return [codes.filter((c) => c === "not_found").length, codes.at(-1)]"""
    got, _ = run_body(tracker, body, timeout_ms=10_000)
    assert got.json["output"] == [1000, "quota_exceeded"]


def test_an_app_user_gets_no_more_rows_by_a_function_than_by_the_api(tracker: Tracker) -> None:
    """The hidden column and the neighbour's rows, as filter, order, relation and value."""
    home = tracker.post("key", "/rows/lists", {"name": "Home", "owner_id": tracker.users["bob"]}).json["id"]
    task = {"title": "Bob's", "list_id": home, "owner_id": tracker.users["bob"], "internal": "hidden"}
    theirs = tracker.post("key", "/rows/tasks", task).json["id"]
    body = f"""const said: any[] = [];
        for (const ask of [
            () => ctx.rows.get("tasks", "{theirs}"), () => ctx.rows.update("tasks", "{theirs}", {{title: "mine"}}),
            () => ctx.rows.remove("tasks", "{theirs}"), () => ctx.rows.list("tasks", {{order: "internal.asc"}}),
            () => ctx.rows.insert("tasks", {{title: "x", list_id: "{home}"}}),
        ]) try {{ await ask(); said.push("granted") }} catch (error: any) {{ said.push(error.code) }}
        return [said, (await ctx.rows.list("tasks")).data.length]"""
    got, _ = run_body(tracker, body, who="alice")
    said, count = got.json["output"]
    assert (set(said) <= {"not_found", "validation_failed"}, count) == (True, 0), said
    assert tracker.get("key", f"/rows/tasks/{theirs}").json["title"] == "Bob's"


# ── The network ─────────────────────────────────────────────────────────────────────────────────────────────────────

INNER = ["127.0.0.1", "localhost", "169.254.169.254", "10.0.0.1", "192.168.0.1", "0.0.0.0"]  # noqa: S104 - called, not bound


def test_an_allowed_host_is_still_no_way_to_an_inner_address(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner may write any name into allowed_hosts; the guarded client checks the IP address it connects to."""
    with Receiver() as canary:
        addresses = [f"http://{host}:{canary.port}/" for host in INNER]
        hosts = [f"{host}:{canary.port}" for host in INNER] + INNER
        body = f"""const said: string[] = [];
            for (const address of {addresses!r}) {{
                try {{ await ctx.fetch(address); said.push("answered") }} catch (error: any) {{ said.push(error.code) }}
            }}
            return said"""
        got, _ = run_body(tracker, body, allowed_hosts=hosts, timeout_ms=10_000)
        assert set(got.json["output"]) <= {"fetch_failed", "refused"}, got.json
        assert canary.connections == 0


def test_a_name_that_is_bound_anew_to_an_inner_address_is_not_called(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([["93.184.215.14"], ["127.0.0.1"], ["::ffff:127.0.0.1"], ["169.254.169.254"]])

    def resolve(host: str, port: int, deadline: float, owner: str) -> list[Any]:
        import ipaddress

        return [ipaddress.ip_address(text) for text in next(answers)]

    guarded = outbound.Client(resolve=resolve)
    monkeypatch.setattr(outbound, "client", lambda: guarded)
    with Receiver() as canary:
        body = f"""const said: string[] = [];
            for (let i = 0; i < 4; i++) {{
                try {{ await ctx.fetch("http://rebind.example:{canary.port}/"); said.push("answered") }}
                catch (error: any) {{ said.push(error.code) }}
            }}
            return said"""
        got, _ = run_body(tracker, body, allowed_hosts=["rebind.example"], timeout_ms=10_000)
        assert set(got.json["output"] if got.status == 200 else ["timeout"]) <= {"fetch_failed", "refused", "timeout"}
        assert canary.connections == 0


@pytest.mark.exhaustive
def test_what_one_tenant_sends_to_a_host_swallows_nothing_of_anothers(
    tracker: Tracker,
    make_tracker: Any,
    settings: Any,
) -> None:
    """A host that takes a body for the next request, and answers on a connection that stays open: the content of that
    body must not become the head of another caller's request, whose headers it would keep for its sender."""
    settings.OUTBOUND_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    theirs = make_tracker(DOCUMENT, "Theirs")
    with Receiver(answer("200 OK", b"{}"), reads_bodies_of={b"POST"}) as receiver:
        half = f"POST /mine HTTP/1.1\\r\\nHost: 127.0.0.1:{receiver.port}\\r\\nContent-Length: 20\\r\\n\\r\\n"
        attack = f"""const answer = await ctx.fetch("{receiver.url("/")}", {{method: "DELETE", body: "{half}"}});
            return answer.status"""
        got, _ = run_body(tracker, attack, allowed_hosts=["127.0.0.1"])
        assert got.json["output"] == 200
        body = f"""const answer = await ctx.fetch("{receiver.url("/theirs")}", {{headers: {{"X-Secret": "precious"}}}});
            return answer.status"""
        run_body(theirs, body, allowed_hosts=["127.0.0.1"])
        assert [request for request in receiver.requests if request.startswith(b"GET /theirs ")]
        assert not [request for request in receiver.requests if b"/mine" in request and b"theirs" in request]


def test_the_length_of_a_chain_is_not_the_codes_to_forget(tracker: Tracker, settings: Any) -> None:
    """F27: a function that calls the platform again carries how deep it is, whatever headers it sends itself."""
    settings.OUTBOUND_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    with Receiver(answer("200 OK", b"{}")) as receiver:
        body = f"""const answer = await ctx.fetch("{receiver.url("/")}",
                {{method: "POST", headers: {{"X-Platform-Depth": "0", "x-PLATFORM-depth": "0"}}, body: "{{}}"}});
            return [answer.status, await answer.text()]"""
        got, _ = run_body(tracker, body, allowed_hosts=["127.0.0.1"])
        assert got.json["output"] == [200, "{}"]
        (request,) = receiver.requests
        [carried] = [line for line in request.split(b"\r\n") if line.lower().startswith(b"x-platform-depth:")]
        carried_on = carried.decode().partition(": ")[2]
        assert call_depth.depth_of({call_depth.META: carried_on}, tracker.environment_id) == 1
        assert invoke(tracker, "f", headers={"X-Platform-Depth": carried_on}).status == 200
        assert Run.objects.using(tracker.project.cluster).latest("created_at").depth == 1
    deep = invoke(tracker, "f", headers={"X-Platform-Depth": call_depth.sign(8, tracker.environment_id)})
    assert (deep.status, deep.error) == (409, "conflict")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "made_up", ["7", "8", "999", "7.", "7.AAAAAAAAAAAAAAAAAAAAAA", "another's", "its own, raised", "replayed"]
)
def test_the_length_of_a_chain_is_not_a_users_to_say(tracker: Tracker, make_tracker: Any, made_up: str) -> None:
    """By a high one a user would keep what a function writes for them from every webhook."""
    if made_up == "another's":
        made_up = call_depth.sign(7, make_tracker(DOCUMENT, "Theirs").environment_id)
    elif made_up == "replayed":
        made_up = call_depth.sign(7, tracker.environment_id)
    elif made_up == "its own, raised":
        made_up = "7" + call_depth.sign(1, tracker.environment_id)[1:]
    using = tracker.project.cluster
    home = tracker.post("owner", "/rows/lists", {"name": "Home", "owner_id": tracker.users["alice"]}).json["id"]
    hook = {"url": "https://hooks.example.com/", "events": ["tasks.insert"]}
    assert tracker.post("owner", "/webhooks", hook).status == 201
    source = f"export default (_: unknown, ctx: any) => ctx.rows.insert('tasks', {{title: 'x', list_id: '{home}'}})"
    assert deploy(tracker, "f", source).status == 201
    got = invoke(tracker, "f", who="alice", headers={"X-Platform-Depth": made_up})
    assert (got.status, got.json["status"]) == (200, "succeeded"), got.json
    assert Run.objects.using(using).get().depth == 0
    relay_batch(using)
    [delivery] = Delivery.objects.using(using).all()
    assert (delivery.status, delivery.depth) == ("pending", 1)


@pytest.mark.exhaustive
def test_what_is_fetched_arrives_whole_or_not_at_all(tracker: Tracker, settings: Any) -> None:
    """In both directions: no default content type for a body, no rewritten headers, no silent end after 1 MB."""
    settings.OUTBOUND_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    exactly = 1024 * 1024

    def run(receiver: Receiver, said: str) -> Any:
        body = f"""const said: any[] = [], send = (init: any) => ctx.fetch("{receiver.url("/")}", {{method: "POST", ...init}});
            const attempt = async (init: any) => {{
                try {{ said.push((await (await send(init)).arrayBuffer()).byteLength) }}
                catch (error: any) {{ said.push([error.name, error.code]) }}
            }};
            {said}
            return said"""
        return run_body(tracker, body, allowed_hosts=["127.0.0.1"], timeout_ms=10_000)[0].json["output"]

    with Receiver(answer("200 OK", b"x" * exactly)) as receiver:
        assert run(receiver, "await attempt({})") == [exactly]
    with Receiver(answer("200 OK", b"x" * (exactly + 1))) as receiver:
        assert run(receiver, "await attempt({})") == [["RangeError", "payload_too_large"]]
    with Receiver(answer("200 OK", b"ok")) as receiver:
        said = """const bytes = new Uint8Array([1, 2, 3, 4]);
            for (const body of [bytes, bytes.buffer, new DataView(bytes.buffer, 1, 2), new Uint16Array(bytes.buffer), new URLSearchParams({a: "b"})])
                await attempt({body, headers: {"X-Flag": true, "X-Number": 1.5}});
            await attempt({headers: [["X-Flag", "true"], ["X-Number", "1.5"]]});
            for (const body of [new Blob(["a"]), new Blob(["b"]).stream()]) await attempt({body});
            await attempt({headers: {"a b": "c"}});
            await attempt({body: new Blob(["x".repeat(1024 * 1024 + 1)])});"""
        assert run(receiver, said) == [2] * 8 + [["TypeError", None], ["RangeError", "payload_too_large"]]
        heads = [request.lower().split(b"\r\n") for request in receiver.requests]
        assert all({b"x-flag: true", b"x-number: 1.5"} <= set(head) for head in heads[:6])
        bodies = [request.partition(b"\r\n\r\n")[2] for request in receiver.requests]
        assert bodies == [
            b"\x01\x02\x03\x04",
            b"\x01\x02\x03\x04",
            b"\x02\x03",
            b"\x01\x02\x03\x04",
            b"a=b",
            b"",
            b"a",
            b"b",
        ]


def test_a_request_is_what_fetch_makes_of_it(tracker: Tracker, settings: Any) -> None:
    """Bodies have their content type, a Request works, cookies are separate."""
    settings.OUTBOUND_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    cookies = (
        b"200 OK\r\nSet-Cookie: a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT\r\nSet-Cookie: b=2\r\nX-Two: 1\r\nX-Two: 2"
    )
    with Receiver(answer(cookies.decode(), b"{}")) as receiver:
        body = f"""const url = "{receiver.url("/")}", form = new FormData();
            form.set("to", "bob"); form.set("file", new Blob(["abc"], {{type: "text/plain"}}), "a.txt");
            await ctx.fetch(url, {{method: "POST", body: new URLSearchParams({{a: "b c"}})}});
            await ctx.fetch(url, {{method: "POST", body: form}});
            await ctx.fetch(url, {{method: "POST", body: new Blob(["x"], {{type: "text/csv"}})}});
            await ctx.fetch(url, {{method: "POST", body: new URLSearchParams(), headers: {{"Content-Type": "own/type"}}}});
            await ctx.fetch(new Request(url + "asked", {{method: "PUT", body: "text", headers: {{"X-A": "1"}}}}));
            await ctx.fetch(new Request(url + "changed", {{headers: {{"X-A": "1"}}}}), {{method: "DELETE"}});
            await ctx.fetch(url, {{method: "POST", body: JSON.stringify({{a: "b"}})}});
            const got = await ctx.fetch(new URL(url));
            return [got.headers.getSetCookie(), got.headers.get("x-two")]"""
        got, run = run_body(tracker, body, allowed_hosts=["127.0.0.1"], timeout_ms=10_000)
        assert got.json["status"] == "succeeded", run
        assert got.json["output"] == [["a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT", "b=2"], "1, 2"]
    requests = [request.decode() for request in receiver.requests]
    types = [re.search(r"\r\ncontent-type: (.*)\r\n", request, re.IGNORECASE) for request in requests]
    assert [found and found[1].partition("; boundary")[0] for found in types] == [
        "application/x-www-form-urlencoded;charset=UTF-8", "multipart/form-data", "text/csv", "own/type",
        "text/plain;charset=UTF-8", None, "text/plain;charset=UTF-8", None,
    ]  # fmt: skip
    assert 'name="file"; filename="a.txt"\r\nContent-Type: text/plain\r\n\r\nabc\r\n' in requests[1]
    assert (requests[4][:11], requests[4][-4:], requests[5][:15]) == ("PUT /asked ", "text", "DELETE /changed")
    assert all("x-a: 1" in request.lower() for request in requests[4:6])


def test_a_fetch_ends_when_its_signal_does(tracker: Tracker, settings: Any) -> None:
    settings.OUTBOUND_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        body = f"""const said: any[] = [], began = performance.now();
            const attempt = async (signal: AbortSignal) => {{
                try {{ await ctx.fetch("{url}", {{signal}}); said.push("answered") }} catch (error: any) {{ said.push(error.name) }} }};
            await attempt(AbortSignal.abort(new Error("no more")));
            await attempt(AbortSignal.timeout(100));
            try {{ await ctx.rows.get("tasks", "x") }} catch (error: any) {{ said.push(error.code) }}
            return [said, performance.now() - began]"""
        got, run = run_body(tracker, body, allowed_hosts=["127.0.0.1"], timeout_ms=10_000)
    assert got.json["status"] == "succeeded", run
    said, waited = got.json["output"]
    assert said == ["Error", "TimeoutError", "not_found"]
    assert waited < within(5) * 1000, (
        "the host lets go of it, too: what is asked next need not wait for its ten seconds"
    )


# ── Time ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def held(tracker: Tracker, list_id: str) -> tuple[str, list[str]]:
    """SQL that locks a row, and with which parameters."""
    return f'SELECT 1 FROM "{tracker.environment_id}".lists WHERE id = %s FOR UPDATE', [list_id]


@pytest.mark.exhaustive
def test_a_statement_that_would_outlast_the_call_is_cancelled(tracker: Tracker) -> None:
    """A row is locked by another session for longer than the call may take: neither the caller nor PostgreSQL waits."""
    home = tracker.post("key", "/rows/lists", {"name": "Home", "owner_id": tracker.users["alice"]}).json["id"]
    source = """export default async (_: any, ctx: any) => {
        try { await ctx.rows.update('lists', _.id, {name: 'late'}) } catch {}
        await ctx.rows.update('lists', _.id, {name: 'later'}) }"""
    deploy(tracker, "late", source, timeout_ms=300)
    using = tracker.project.cluster
    answers: list[Answer] = []

    def call() -> None:
        with connections[using].cursor() as cursor:
            cursor.execute("SET lock_timeout = 0; SET statement_timeout = 0")  # the database itself would wait for ever
        answers.append(invoke(tracker, "late", {"id": home}))
        answers.append(tracker.get("key", f"/rows/lists/{home}"))  # its thread goes on with another connection
        connections.close_all()

    with row_access(), transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(*held(tracker, home))
        thread = threading.Thread(target=call)
        thread.start()
        thread.join(within(10))
        assert len(answers) == 2, "while the lock was still held"
        assert waiting_for_locks(using) == 0
    assert (answers[0].status, answers[0].error) == (504, "function_timeout")
    assert (answers[1].status, answers[1].json["name"]) == (200, "Home")
    assert Run.objects.using(using).get().error["reason"] == "timeout"


@pytest.mark.exhaustive
def test_a_statement_of_a_cancelled_run_is_cancelled(tracker: Tracker) -> None:
    home = tracker.post("key", "/rows/lists", {"name": "Home", "owner_id": tracker.users["alice"]}).json["id"]
    deploy(
        tracker, "late", "export default (_: any, ctx: any) => ctx.rows.update('lists', _.id, {name: 'late'})",
        timeout_ms=10_000,
    )  # fmt: skip
    using = tracker.project.cluster
    answers: list[Answer] = []

    def call() -> None:
        with connections[using].cursor() as cursor:
            cursor.execute("SET lock_timeout = 0; SET statement_timeout = 0")
        answers.append(invoke(tracker, "late", {"id": home}))
        connections.close_all()

    def cancel(run_id: str) -> None:
        answers.append(tracker.post("owner", f"/functions/late/runs/{run_id}/cancel", None))
        connections.close_all()

    with row_access(), transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute(*held(tracker, home))
        thread = threading.Thread(target=call)
        thread.start()
        wait_for("it waits for the lock", lambda: waiting_for_locks(using))
        run = Run.objects.using(using).get()
        canceller = threading.Thread(target=cancel, args=[run.pk])  # not in the transaction that holds the lock
        canceller.start()
        canceller.join(within(5))
        thread.join(within(5))
        assert [answer.status for answer in answers] == [200, 200]
        assert waiting_for_locks(using) == 0
    run.refresh_from_db()
    assert run.error["reason"] == "cancelled"


def test_a_cancelled_run_ends_its_fetch(tracker: Tracker, settings: Any) -> None:
    settings.OUTBOUND_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    using = tracker.project.cluster
    answers: list[Answer] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        source = f"export default async (_: any, ctx: any) => (await ctx.fetch('{url}')).status"
        deploy(tracker, "late", source, timeout_ms=10_000, allowed_hosts=["127.0.0.1"])

        def call() -> None:
            answers.append(invoke(tracker, "late"))
            connections.close_all()

        thread = threading.Thread(target=call)
        thread.start()
        connection, _ = silent.accept()
        connection.recv(65536)
        run = Run.objects.using(using).get()
        tracker.post("owner", f"/functions/late/runs/{run.pk}/cancel", None)
        thread.join(within(3))
        assert len(answers) == 1, "the server is still silent"
        connection.close()
    run.refresh_from_db()
    assert run.error["reason"] == "cancelled"


def test_what_goes_wrong_after_the_return_is_not_the_next_calls(tracker: Tracker) -> None:
    source = """export default async (input: any) => {
        if (input.late) {
            Promise.resolve().then(() => 0).then(() => { throw new Error("late") });
            setTimeout(() => { throw new Error("later") }, 0);
            queueMicrotask(() => { Promise.reject(new Error("latest")) });
        }
        return input }"""
    deploy(tracker, "f", source)
    for number in range(6):
        got = invoke(tracker, "f", {"late": number % 2 == 0, "number": number})
        assert (got.json["status"], got.json["output"]["number"]) == ("succeeded", number), got.json


@pytest.mark.exhaustive
def test_a_function_that_breaks_its_process_costs_its_neighbours_nothing(tracker: Tracker) -> None:
    deploy(tracker, "sum", SUM)
    for body in (
        "const a: any[] = []; while (true) a.push(new Array(1e6).fill(1.5))",
        "while (true) {}",
        "const say = console.log; for (;;) say('x'.repeat(1e5))",
        "Object.freeze(Promise.prototype); Object.freeze(Object.prototype); return 1",
        "(globalThis as any).Deno = null; (globalThis as any).TextEncoder = null; return 1",
    ):
        run_body(tracker, body, timeout_ms=600)
        assert invoke(tracker, "sum", {"a": 1, "b": 2}).json["output"] == {"sum": 3}


# ── What comes in ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_input_beyond_the_bodys_limit_is_refused_before_there_is_a_run(tracker: Tracker) -> None:
    deploy(tracker, "sum", SUM)
    got = invoke(tracker, "sum", {"a": "x" * 5_000_000})
    assert (got.status, got.error) == (413, "payload_too_large")
    assert invoke(tracker, "sum", {"a": "x" * 900_000, "b": ""}).status == 200
    assert Run.objects.using(tracker.project.cluster).count() == 1
    assert MAX_FRAME_BYTES > 2 * 6 * 1024 * 1024, "the largest output of a plan fits into a frame"


def test_members_that_mean_something_to_javascript_are_data(tracker: Tracker) -> None:
    given = {"__proto__": {"polluted": 1}, "constructor": {"prototype": {"polluted": 1}}, "then": "x", "toJSON": 1}
    body = "return [({} as any).polluted ?? null, Object.keys(input), input]"
    deploy(tracker, "f", f"export default (input: any) => {{ {body} }}")
    got = invoke(tracker, "f", given).json["output"]
    assert got[0] is None
    assert got[2] == given
