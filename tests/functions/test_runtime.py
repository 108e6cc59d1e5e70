"""The runtime: what a function may do, what it may not, and what becomes of one that tries."""

import os
import re
import resource
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from functions.runtime.calls import Call
from functions.runtime.errors import LoadFailed, StartFailed
from functions.runtime.pool import Pool
from functions.runtime.process import Process
from functions.runtime.programs import Busy, Program
from tests.functions.conftest import RecordingHost, RunCode
from tests.support.concurrency import wait_until
from tests.support.threads import refuse_new_threads
from tests.support.timing import within

IDENTITY = "export default (input) => input"


@pytest.mark.parametrize("value", [None, True, 0, -1.5, "", "ünï 😀", [], [1, [2]], {}, {"a": {"b": None}}])
def test_every_kind_of_json_goes_in_and_comes_out(run_code: RunCode, value: Any) -> None:
    assert run_code(IDENTITY, value).output == value


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 2**63 - 1, [{"n": 2**53 + 1}, 1, "9007199254740993"]])
def test_an_integer_above_two_to_the_53_keeps_its_digits(run_code: RunCode, value: Any) -> None:
    outcome = run_code(IDENTITY, value)
    assert (outcome.error, outcome.output) == (None, value)


def test_only_an_integer_that_a_number_cannot_hold_is_a_bigint(run_code: RunCode) -> None:
    source = "export default (all: unknown[]) => [...all.map((one) => typeof one), JSON.stringify({n: 2n ** 60n})]"
    values = [2**53 - 1, 2**53 + 1, 1e300, 0.1234567890123456789, "9007199254740993"]
    assert run_code(source, values).output == [
        "number", "bigint", "number", "number", "string", '{"n":1152921504606846976}',
    ]  # fmt: skip


def test_the_code_that_replaces_exec_and_tojson_sees_no_frame(run_code: RunCode) -> None:
    source = """const seen: unknown[] = [];
        RegExp.prototype.exec = RegExp.prototype.test = function (text: unknown) { seen.push(text); return null };
        JSON.parse = (text: unknown) => { seen.push(text); return null };
        export default async (_: unknown, ctx: any) => {
            await ctx.rows.list("tasks", {limit: 1, big: 2n ** 60n});
            return seen.length;
        }"""
    assert run_code(source, 2**60).output == 0


@pytest.mark.parametrize("value", [2**60, "1152921504606846976"])
def test_no_frame_is_left_in_the_static_properties_of_regexp(run_code: RunCode, value: Any) -> None:
    source = """const R = RegExp as any;
        const seen = () => [R.input, R.lastMatch, R.leftContext, R.rightContext];
        export default async (_: unknown, ctx: any) => {
            const first = seen();
            await ctx.rows.list("tasks", {limit: 1, big: 2n ** 60n});
            return [...first, ...seen()];
        }"""
    assert set(run_code(source, [value, "of this call"]).output) == {""}


def test_a_large_input_goes_in_whole(run_code: RunCode) -> None:
    assert run_code("export default (s: string) => s.length", "x" * 5_000_000).output == 5_000_000


def test_typescript_runs_and_an_async_function_is_awaited(run_code: RunCode) -> None:
    source = "type In = {a: number}; export default async ({a}: In): Promise<number> => { await null; return a + 1 }"
    assert run_code(source, {"a": 1}).output == 2


def test_the_code_asks_its_host_and_sees_its_refusals(run_code: RunCode, host: RecordingHost) -> None:
    source = """export default async (_: unknown, ctx: any) => {
        const listed = await ctx.rows.list("tasks", {limit: 1});
        try { await ctx.rows.get("tasks", "x") } catch (error) { return [listed.operation, error.name, error.code, error.message] }
    }"""
    assert run_code(source).output == ["rows.list", "NotFound", "not_found", "no such row"]
    assert host.asked == [
        ("rows.list", {"table": "tasks", "query": {"limit": 1}}),
        ("rows.get", {"table": "tasks", "id": "x", "query": {}}),
    ]


def test_the_console_becomes_the_log_and_is_bounded(run_code: RunCode) -> None:
    outcome = run_code("export default () => { for (let i = 0; i < 1e6; i++) console.log('line', i); return 1 }")
    assert outcome.output == 1
    assert len(outcome.logs) == 257
    assert outcome.logs[0].text == "line 0"
    assert outcome.logs[-1].text == "(more lines were dropped)"
    long = run_code("export default () => { console.error('x'.repeat(100000)) }")
    assert (long.logs[0].level, len(long.logs[0].text)) == ("error", 4096)


def test_no_method_of_the_console_writes_anywhere_else(run_code: RunCode) -> None:
    source = """export default () => {
        const names = Object.getOwnPropertyNames(console).filter((name) => typeof (console as any)[name] === "function");
        for (const name of names) for (let i = 0; i < 3; i++) (console as any)[name](name, i);
        console.log("all of them");
        return names;
    }"""
    outcome = run_code(source)
    assert {"log", "clear", "count", "time", "timeLog", "timeEnd", "assert"} <= set(outcome.output)
    assert outcome.logs[-1].text == "all of them"
    counted = run_code("""export default () => {
        console.count(); console.count(); console.countReset(); console.count("rows");
        console.time(); console.timeLog("default", "still"); console.timeEnd(); console.timeEnd();
        console.assert(true, "held"); console.assert(1 > 2, "broke");
    }""")
    texts = [line.text for line in counted.logs]
    assert texts[:3] == ["default: 1", "default: 2", "rows: 1"]
    assert texts[3].startswith("default: ")
    assert texts[3].endswith("ms still")
    assert texts[4].endswith("ms")
    assert texts[5:] == ["Timer 'default' does not exist", "Assertion failed broke"]


@pytest.mark.parametrize(("times", "size"), [(900, 10), (60, 20_000)])
def test_a_burst_of_questions_is_answered_however_much_there_is_to_say(
    run_code: RunCode, host: RecordingHost, times: int, size: int
) -> None:
    """More of them than the channel holds, with answers that it does not hold either: both sides write."""
    source = """export default async ([times, size]: number[], ctx: any) => {
        const row = {body: "x".repeat(size)};
        const made = Array.from({length: times}, () => ctx.rows.insert("tasks", row));
        for (let i = 0; i < 200; i++) console.log("y".repeat(4000));
        return (await Promise.all(made)).filter((answer) => answer.arguments.row.body === row.body).length;
    }"""
    outcome = run_code(source, [times, size], timeout=within(5))
    assert (outcome.reason, outcome.output, len(host.asked)) == (None, times, times)
    assert len(outcome.logs) == 200


def test_large_input_is_passed_with_thousands_of_open_descriptors(run_code: RunCode) -> None:
    """`select` takes none from 1,024 up, and a web process has one for each client."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2048)), hard))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] < 1024:
            opened.append(os.dup(opened[0]))
        assert run_code("export default (s: string) => s.length", "x" * 1_000_000).output == 1_000_000
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_secrets_and_the_caller_are_given_and_frozen(run_code: RunCode) -> None:
    source = "export default (_: unknown, ctx: any) => { try { ctx.secrets.KEY = 'y' } catch {} return [ctx.secrets.KEY, ctx.caller.id] }"
    assert run_code(source, secrets={"KEY": "s3cret"}).output == ["s3cret", "usr_x"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("throw new Error('broken')", "broken"),
        ("throw null", "threw null"),
        ("throw 'a string'", "a string"),
        ("const a: any = {}; a.a = a; return a", "not JSON"),
        ("Promise.reject(new Error('unhandled')); await new Promise((done) => setTimeout(done, 20))", "unhandled"),
        ("Deno.exit(0)", "not a function"),
        ("return new Response('hello')", "a function must return plain data, not a Response"),
        ("return (async function* () { yield 1 })()", "not a generator or a stream"),
        ("return (function* () { yield 1 })()", "not a generator or a stream"),
        ("return new Response('hello').body", "not a generator or a stream"),
        (
            "const e: any = new Error('no.'); e.fields = [{field: 'titel', message: 'No such column.'}]; throw e",
            "no. titel: No such",
        ),
        ("const e: any = new Error('mine'); e.fields = 5; throw e", "mine"),
        ("const e: any = new Error('mine'); Object.defineProperty(e, 'fields', {get() { throw 1 }}); throw e", "mine"),
    ],
)
def test_what_the_code_does_wrong_is_its_own_error(run_code: RunCode, body: str, message: str) -> None:
    outcome = run_code(f"export default async () => {{ {body} }}", timeout=2)
    assert outcome.reason == "user_error"
    assert outcome.error is not None
    assert message in outcome.error["message"]


LATE = "const later = (ms: number) => new Promise((done) => setTimeout(done, ms));"


def test_a_promise_that_is_rejected_first_may_be_awaited_later(run_code: RunCode) -> None:
    source = f"""{LATE} export default async () => {{
        const p = Promise.reject(new Error("late")); await later(50); try {{ await p }} catch (e: any) {{ return e.message }}
    }}"""
    assert run_code(source).output == "late"


@pytest.mark.parametrize(
    "handles",
    ["await Promise.allSettled([p])", "p.catch(() => {})", "await Promise.race([p, 1]).catch(() => {})"],
)
def test_each_way_of_handling_a_rejection_later_counts(run_code: RunCode, handles: str) -> None:
    source = (
        f"{LATE} export default async () => {{ const p = Promise.reject(1); await later(5); {handles}; return 'done' }}"
    )
    assert run_code(source).output == "done"


def test_a_call_that_never_ends_has_its_rejected_promise_in_its_log(run_code: RunCode) -> None:
    source = "export default () => { Promise.reject(new Error('lost')); return new Promise(() => {}) }"
    outcome = run_code(source, timeout=2)
    assert outcome.reason == "timeout"
    assert [(line.level, "lost" in line.text) for line in outcome.logs] == [("warning", True)]


def test_a_rejection_does_not_reach_the_next_call_of_the_process(run_code: RunCode) -> None:
    source = f"""{LATE} let calls = 0; export default async () => {{
        calls += 1; if (calls === 1) {{ later(30).then(() => {{ throw new Error("late") }}); return calls }}
        await later(60); return calls
    }}"""
    assert [run_code(source).output, run_code(source).output] in ([1, 2], [1, 1])


def test_what_json_leaves_out_becomes_null(run_code: RunCode) -> None:
    assert run_code("export default () => undefined").output is None
    assert run_code("export default () => NaN").output is None


def test_what_is_iterable_and_yet_json_is_an_output(run_code: RunCode) -> None:
    source = "export default () => ({ toJSON: () => [1], [Symbol.asyncIterator]: () => null })"
    assert run_code(source).output == [1]
    assert run_code("export default () => ({ next: 'page', *[Symbol.iterator]() {} })").output == {"next": "page"}


@pytest.mark.exhaustive
def test_an_endless_loop_and_an_endless_wait_end_at_the_timeout(run_code: RunCode) -> None:
    for body in (
        "while (true) {}",
        "return new Promise(() => {})",
        "(function f(): void { queueMicrotask(f) })(); return new Promise(() => {})",
    ):
        outcome = run_code(f"export default () => {{ {body} }}", timeout=0.5)
        assert outcome.reason == "timeout"
        assert 0.5 <= outcome.duration < within(1)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "grow", ["new Array(1e6).fill(1.5)", "new Uint8Array(1e7).fill(1)", "'x'.repeat(1e7) + Math.random()"]
)
def test_a_memory_bomb_ends_and_the_machine_does_not_notice(run_code: RunCode, grow: str) -> None:
    outcome = run_code(f"export default () => {{ const a: any[] = []; while (true) a.push({grow}) }}", timeout=10)
    assert outcome.reason == "memory" or (outcome.error or {}).get("name") == "RangeError"
    assert outcome.duration < within(4)


def test_an_output_beyond_the_limit_is_refused(run_code: RunCode) -> None:
    assert run_code("export default () => 'x'.repeat(2000)", max_output=1000).reason == "output_too_large"
    # In bytes, as it is stored, with the quotes of the JSON.
    assert run_code("export default () => 'é'.repeat(499)", max_output=1000).reason is None
    assert run_code("export default () => 'é'.repeat(500)", max_output=1000).reason == "output_too_large"


def test_no_frame_is_handed_to_the_prototypes_of_the_code(run_code: RunCode) -> None:
    """Slicing a buffer asks the buffer's prototype for its species, and passes the buffer to it."""
    source = """export default async (_: unknown, ctx: any) => {
        const seen: string[] = [], text = new TextDecoder(), kind = Object.getPrototypeOf(Uint8Array.prototype);
        const look = (bytes: any) => { const found = /"tag":"[0-9a-f]{32}"/.exec(text.decode(bytes)); if (found) seen.push(found[0]) };
        for (const [owner, name] of [[Uint8Array.prototype, "constructor"], [kind, "length"], [kind, "byteLength"], [kind, "buffer"]]) {
            const was: any = Object.getOwnPropertyDescriptor(owner, name);
            let busy = false;
            Object.defineProperty(owner, name, {configurable: true, get() {
                if (!busy && this instanceof Uint8Array) { busy = true; look(this); busy = false }
                return was.get ? was.get.call(this) : was.value } });
            console.log(name);
            await ctx.rows.list("tasks");
            Object.defineProperty(owner, name, was);
        }
        return seen }"""
    assert run_code(source).output == []


def test_no_frame_is_asked_by_a_promise_for_its_then(run_code: RunCode) -> None:
    """Whatever answers could put a frame of its own in the place of the next one."""
    source = """const asked: string[] = [], text = new TextDecoder(), own = (it: any) => Object.getOwnPropertyNames(it).join();
    Object.defineProperty(Object.prototype, "then", {configurable: true, get() {
        asked.push(this instanceof Uint8Array ? text.decode(this) : own(this));
        if (this?.t === "reply") return (resolve: any) => resolve({...this, value: "forged"});
    }});
    export default async (_: unknown, ctx: any) => {
        const answer = await ctx.rows.list("tasks");
        return [answer.operation, asked.filter((each) => /tag|caller|secret/.test(each))] }"""
    for _ in range(2):  # the second call's first frame comes when the code is there
        assert run_code(source, secrets={"A": "secret"}).output == ["rows.list", []]


def test_a_module_that_does_not_load_says_where(run_code: RunCode) -> None:
    with pytest.raises(LoadFailed, match="1:36"):
        run_code("export default () => {const x = 1 +; }")
    with pytest.raises(LoadFailed, match="default export"):
        run_code("export const x = 1")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            "const a = 1;\n  JSON.parse('{oops');\nexport default () => a",
            r"^SyntaxError: .*\n +at .*function\.ts:2:8\)?$",
        ),
        (
            "interface A { x: number }\n\nundefined.x;\nexport default () => 1",
            r"^TypeError: .*\n +at function\.ts:3:11$",
        ),
        (
            "const crypto = require('crypto');\nexports.handler = async () => 1",
            r"CommonJS.*export default(.|\n)*function\.ts:1:16$",
        ),
        ("module.exports = () => 1", r"CommonJS.*export default(.|\n)*function\.ts:1:1$"),
        ("Deno.serve(() => new Response('x'))", r"export default async \(input, ctx\)(.|\n)*function\.ts:1:6$"),
        ("export default { fetch() { return new Response('x') } }", r"export default async \(input, ctx\)"),
        ("throw 'text'; export default 1", r"^text$"),
    ],
)
def test_what_goes_wrong_as_a_module_loads_is_told_with_its_line(run_code: RunCode, source: str, told: str) -> None:
    with pytest.raises(LoadFailed) as refused:
        run_code(source)
    assert re.search(told, str(refused.value)), str(refused.value)


@pytest.mark.exhaustive
def test_a_bundle_of_half_a_megabyte_is_told_its_lines_too(pool: Pool, run_code: RunCode) -> None:
    pool.load_seconds = 60.0  # some seconds of CPU, on a machine that may be busy
    bundle = "".join(f"var a{number}=(b,c)=>b+c.d.e{number};" for number in range(16_000))
    assert 500_000 > len(bundle) > 400_000
    with pytest.raises(LoadFailed, match=r"^SyntaxError: (.*\n)+ +at function\.ts:2:9$"):
        run_code(f"{bundle}\nvar b = = 1;\nexport default () => 1")
    outcome = run_code(f"{bundle}\nexport default () => a5(1, {{}})")
    assert re.search(r"at a5 \(function\.ts:1:\d+\)\n +at default \(function\.ts:2:22\)$", outcome.error["stack"]), (
        outcome.error
    )


def test_an_error_brings_its_causes_and_its_line(run_code: RunCode) -> None:
    source = """class Broken extends Error { override name = "Broken" }
        const inner = async (): Promise<never> => { await null; throw new TypeError("closed") };
        export default async (what: string, ctx: any) => {
            if (what === "several") return Promise.any([inner(), Promise.reject(new Error("two"))]);
            if (what === "endless") { const e: any = new Error("round"); e.cause = e; throw e }
            if (what === "odd") throw new Error("odd", { cause: { code: 5 } });
            if (what === "row") await ctx.rows.get("tasks", "x");
            try { await inner() } catch (error) { throw new Broken("not saved", { cause: error }) }
        }"""
    stack = run_code(source, "cause").error["stack"]
    assert re.fullmatch(
        r"Broken: not saved\n +at default \(function\.ts:8:\d+\)\nCaused by: TypeError: closed\n +at inner \(function\.ts:2:\d+\)(\n.*)*",
        stack,
    ), stack
    stack = run_code(source, "several").error["stack"]
    assert ("One of: TypeError: closed\n    at inner (function.ts:2:" in stack, "One of: Error: two" in stack) == (
        True,
        True,
    )
    assert run_code(source, "odd").error["stack"].endswith("Caused by: { code: 5 }")
    assert len(run_code(source, "endless").error["stack"]) <= 4000
    refused = run_code(source, "row").error
    assert (refused["name"], refused["message"]) == ("NotFound", "no such row")
    assert re.fullmatch(r"NotFound: no such row\n +at default \(function\.ts:7:\d+\)", refused["stack"]), refused[
        "stack"
    ]


def test_an_error_in_the_log_is_in_the_lines_of_the_source(run_code: RunCode) -> None:
    outcome = run_code("""export default () => {
        const error = new Error("outer", { cause: new TypeError("inner") });
        console.error(error);
        console.log(error.stack);
        console.log({ a: 1, error }, "data:text/plain,x");
    }""")
    texts = [line.text for line in outcome.logs]
    assert all("runner.ts" not in text and "base64" not in text for text in texts), texts
    assert re.match(
        r"Error: outer\n +at default \(function\.ts:2:23\) \{\n +\[cause\]: TypeError: inner\n +at default \(function\.ts:2:",
        texts[0],
    )
    assert re.match(r"Error: outer\n +at default \(function\.ts:2:23\)$", texts[1])
    assert texts[2].endswith("data:text/plain,x")


def test_a_format_is_filled_in(run_code: RunCode) -> None:
    outcome = run_code("""export default () => {
        console.log("%s is %d years, %i or %f, %j %o %c%%", "Bob", "42", 42.9, "1.5x", {a: 1}, [1], "color: red", "rest", 2);
        console.log("100%", 5); console.log("%s"); console.log("%s %s", new Map([[1, 2]])); console.log(5, "%s", 6);
        console.log("%d %d %s", 10n, Symbol("x"), Symbol("y"));
    }""")
    assert [line.text for line in outcome.logs] == [
        "Bob is 42 years, 42 or 1.5, {\"a\":1} [ 1 ] % rest 2", "100% 5", "%s", "Map(1) { 1 => 2 } %s", "5 %s 6",
        "10n NaN Symbol(y)",
    ]  # fmt: skip


def test_what_asks_for_the_globals_of_node_before_it_uses_them_loads(run_code: RunCode) -> None:
    """As bundled libraries do. Deno's own `process` throws at its first mention, where there is no `Deno.execPath`."""
    source = """const debug = typeof process !== "undefined" && process.env.DEBUG;
        const isProduction = process.env.NODE_ENV === "production";
        export default () => [debug ?? null, isProduction, typeof process.versions, typeof globalThis.process]"""
    assert run_code(source).output == [None, False, "undefined", "object"]


def test_types_of_other_files_are_erased(run_code: RunCode) -> None:
    source = """import type { FunctionContext } from "../../client.js";
        import type { Tables } from "../../types.ts";
        export default (_: unknown, ctx: FunctionContext<Tables>) => typeof ctx.rows.list"""
    assert run_code(source).output == "function"


@pytest.mark.parametrize("wanted", ["npm:lodash", "jsr:@std/assert", "https://esm.sh/lodash", "lodash", "./other.ts"])
def test_what_cannot_be_imported_says_what_to_do(run_code: RunCode, wanted: str) -> None:
    with pytest.raises(LoadFailed, match="Bundle what it imports") as refused:
        run_code(f'import * as x from "{wanted}"; export default () => x')
    assert "function.ts:1:20" in str(refused.value)
    assert str(refused.value).count('"') % 2 == 0


@pytest.mark.parametrize(
    "source",
    [
        'import s from "/etc/passwd" with {type: "text"}; export default () => s',
        'import s from "file:///etc/passwd" with {type: "text"}; export default () => s',
        'export default async () => (await import("file:///etc/passwd", {with: {type: "text"}})).default',
        'export default async () => { const p = "file:///etc/passwd"; return (await import(p, {with: {type: "text"}})).default }',
        'import fs from "node:fs"; export default () => fs.readFileSync("/etc/passwd", "utf8")',
        'import fs from "node:fs"; export default () => fs.readFileSync("/proc/self/environ", "utf8")',
        'export default async () => (await import("https://example.com/x.ts")).default',
        'export default async () => (await import("npm:left-pad")).default',
        'import cp from "node:child_process"; export default () => cp.execSync("id").toString()',
        'export default () => new (globalThis as any).Worker("data:text/javascript,")',
        'export default async () => (await fetch("http://127.0.0.1:80/")).status',
        'export default async () => (await fetch("http://169.254.169.254/")).status',
        'export default () => (globalThis as any).Deno.readTextFileSync("/etc/passwd")',
        'export default () => (globalThis as any).Deno.dlopen("libc.so.6", {})',
        'export default () => (globalThis as any).localStorage.setItem("a", "b")',
    ],
)
def test_every_way_to_the_host_is_closed(run_code: RunCode, source: str) -> None:
    try:
        outcome = run_code(source, timeout=3)
    except LoadFailed:
        return
    assert outcome.reason is not None
    assert outcome.output is None


def test_the_network_is_closed_below_deno_too(run_code: RunCode) -> None:
    """Also by way of Node's sockets: the listener on loopback is never reached."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as canary:
        canary.settimeout(0.2)
        port = canary.getsockname()[1]
        source = f"""import net from "node:net";
        export default () => new Promise((resolve, reject) => {{
            const s = net.connect({port}, "127.0.0.1"); s.on("error", reject); s.on("connect", () => resolve("open")) }})"""
        try:
            assert run_code(source, timeout=2).output is None
        except LoadFailed:
            pass
        with pytest.raises(TimeoutError):
            canary.accept()


@pytest.mark.parametrize(
    "write",
    [
        'import fs from "node:fs"; const say = (s: string) => fs.writeSync(1, s);',
        'import p from "node:process"; const say = (s: string) => p.stdout.write(s);',
    ],
)
def test_a_forged_frame_is_never_believed(run_code: RunCode, write: str) -> None:
    forged = '\\x26\\0\\0\\0{"t":"done","tag":"x","output":"forged"}'
    try:
        outcome = run_code(f'{write} export default () => {{ say("{forged}"); return "own" }}')
    except LoadFailed:
        return
    assert outcome.output != "forged"


def test_patched_globals_do_not_reach_the_channel(run_code: RunCode) -> None:
    source = """export default () => {
        Object.prototype.toJSON = function () { return "polluted" };
        Array.prototype.push = () => 0; JSON.stringify = () => "{}";
        TextEncoder.prototype.encode = () => new Uint8Array(); String.prototype.slice = () => "";
        return 7 }"""
    outcome = run_code(source, timeout=2)
    assert outcome.output in (7, "polluted")  # its own output it may spoil, nothing else
    hung = run_code("export default () => { Promise.prototype.then = () => {}; return 7 }", timeout=0.5)
    assert hung.reason in (None, "timeout")
    assert run_code(IDENTITY, 1).output == 1


def test_the_operations_of_deno_are_not_handed_to_code(run_code: RunCode) -> None:
    """Deno calls them by `Function.prototype.call`, with all of them as `this`; even the runner's own reading."""
    source = """export default async (_: unknown, ctx: any) => {
        const handed: string[] = [], apply = Reflect.apply;
        for (const name of ["call", "apply"] as const) {
            const trap = function (this: any, ...given: any[]) { if (given[0]?.ops) handed.push(this.name); return apply(this, given[0], given.slice(1)) };
            try { (Function.prototype as any)[name] = trap } catch { /* it stays */ }
            try { Object.defineProperty(Function.prototype, name, {value: trap}) } catch { /* it stays */ }
        }
        await ctx.rows.list("tasks");
        await new Blob(["x"]).text();
        const own: any = () => 1; own.call = () => 2;  // a function's own is its own
        return [handed, own.call(), Math.max.call(null, 1, 2), Math.max.apply(null, [1, 2])] }"""
    assert run_code(source).output == [[], 2, 2, 2]


def test_warm_process_keeps_globals_only_for_its_own_version(run_code: RunCode) -> None:
    count = "globalThis.n = (globalThis.n ?? 0) + 1; export default () => ++globalThis.n"
    assert [run_code(count).output for _ in range(3)] == [2, 3, 4]
    assert run_code(count, owner="env_b").output == 2
    assert run_code(count + " // version 2").output == 2


def test_nothing_of_a_call_runs_after_it(run_code: RunCode, pool: Pool) -> None:
    source = """let ticks = 0, old: any;
    export default async (input: string, ctx: any) => {
        if (input === "start") { old = ctx; setInterval(() => { ticks++ }, 1); return 0 }
        let refused = ""; try { await old.rows.list("tasks") } catch (error) { refused = error.message }
        return [ticks, refused] }"""
    run_code(source, "start")
    time.sleep(0.1)  # what must not happen has 100 ms to happen in
    ticks, refused = run_code(source, "look").output
    assert ticks == 0
    assert "has ended" in refused
    process = next(iter(pool._idle))
    stopped = psutil.Process(process.popen.pid)
    deadline = time.monotonic() + 5
    while stopped.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        time.sleep(0.005)
    assert stopped.status() == psutil.STATUS_STOPPED


LEFTOVERS = """
    let open: any; const gate = new Promise((resolve) => { open = resolve });
    const { port1, port2 } = new MessageChannel();
    const said = (who: string) => async () => {
        console.log(who + " said");
        await crypto.subtle.digest("SHA-256", new Uint8Array(1 << 16));
        console.error(who + " said more");
        setTimeout(() => console.log(who + " said later"), 1);
        await new Blob(["x"]).text();
        queueMicrotask(() => console.warn(who + " said last"));
        if (who === "first") { setTimeout(() => { throw new Error("late") }); throw new Error("not caught") }
    };
    gate.then(() => console.log("the module said"));
    export default async (who: string) => {
        if (who === "first") { gate.then(said(who)); port1.onmessage = said(who); return who }
        open();
        port2.postMessage(null);
        await said(who)();
        await new Promise((resolve) => setTimeout(resolve, 50));
        return who }"""


def test_what_a_call_left_running_says_nothing_in_the_log_of_the_next(run_code: RunCode) -> None:
    """An app user reads the log of their own run: it must not tell of another's."""
    assert run_code(LEFTOVERS, "first").output == "first"
    second = run_code(LEFTOVERS, "second")
    assert (second.output, second.error) == ("second", None)
    assert sorted(line.text for line in second.logs) == [
        "second said", "second said last", "second said later", "second said more",
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_a_crash_takes_no_neighbour_down(pool: Pool, host: RecordingHost, run_code: RunCode) -> None:
    results: list[Any] = []
    slow = "export default () => new Promise((r) => setTimeout(() => r('done'), 600))"
    neighbour = threading.Thread(target=lambda: results.append(run_code(slow).output))
    neighbour.start()
    bomb = run_code(
        "export default () => { const a: any[] = []; while (true) a.push(new Array(1e6).fill(1.5)) }", timeout=10
    )
    neighbour.join(10)
    assert bomb.reason is not None
    assert results == ["done"]
    assert run_code(IDENTITY, 1).output == 1


@pytest.mark.exhaustive
def test_the_pool_is_bounded_and_somebody_leaves(pool: Pool, run_code: RunCode) -> None:
    for number in range(7):
        assert run_code(f"export default () => {number}").output == number
    assert pool.sizes() == (4, 0)


def _counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The owners of the processes that were started from now on."""
    started: list[str] = []
    start = Process.__init__

    def counted(self: Process, memory_mb: int, owner: str, *more: Any) -> None:
        started.append(owner)
        start(self, memory_mb, owner, *more)

    monkeypatch.setattr(Process, "__init__", counted)
    return started


def _call(number: int = 1, timeout: float = 10) -> Call:
    return Call("null", f"run_{number}", {}, {}, timeout, 100)


@pytest.mark.exhaustive
def test_a_circle_of_more_functions_than_places_stays_warm_in_part(
    host: RecordingHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 0.0
    circle = Pool(size=3, idle_seconds=300, max_calls=1000, wait_seconds=2, clock=lambda: seconds)
    programs = [Program(f"p{number}", f"env_{number}", IDENTITY.encode(), 128) for number in range(4)]
    try:
        for program in programs * 2:
            circle.call(program, _call(), host)
            seconds += 0.1
        started = _counting(monkeypatch)
        for program in programs * 5:
            circle.call(program, _call(), host)
            seconds += 0.1
        # Twenty calls. By the order of their last use each of them would have met a cold process.
        assert len(started) <= 12
        # Two are called no more: soon they are the ones who leave, however often they were called before.
        seconds += 60
        for program in programs[:2] * 3:
            circle.call(program, _call(), host)
        started.clear()
        for program in programs[:2] * 3:
            circle.call(program, _call(), host)
        assert started == []
    finally:
        circle.close()


def test_short_calls_at_the_same_time_share_a_process(host: RecordingHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pool, "QUEUE_SECONDS", 30.0)
    shared = Pool(size=8, idle_seconds=30, max_calls=10_000, wait_seconds=30)
    program = Program("short", "env_a", b"export default () => 1", 128)
    started = _counting(monkeypatch)
    try:
        with ThreadPoolExecutor(8) as threads:
            outcomes = [*threads.map(lambda number: shared.call(program, _call(number), host), range(200))]
        assert [outcome.output for outcome in outcomes] == ["1"] * 200
        assert len(started) <= Pool.STARTS_AT_ONCE
        assert shared._by_program["short"].waiting == deque()
    finally:
        shared.close()


def test_who_waits_too_long_gets_a_process_of_its_own(host: RecordingHost) -> None:
    roomy = Pool(size=4, idle_seconds=30, max_calls=1000, wait_seconds=20)
    sleeps = b"export default (ms: number) => new Promise((r) => setTimeout(() => r(ms), ms))"
    program = Program("sleeps", "env_a", sleeps, 128)
    try:
        with ThreadPoolExecutor(4) as threads:
            calls = [Call("1500", f"run_{number}", {}, {}, 20, 100) for number in range(3)]
            outcomes = [*threads.map(lambda call: roomy.call(program, call, host), calls)]
        assert [outcome.output for outcome in outcomes] == ["1500"] * 3
        assert roomy.sizes() == (3, 0)
    finally:
        roomy.close()


@pytest.mark.exhaustive
def test_who_waits_for_a_process_that_dies_starts_another(host: RecordingHost) -> None:
    patient = Pool(size=2, idle_seconds=1, max_calls=1000, wait_seconds=20)
    source = b"export default (loops: boolean) => { while (loops) {} return 1 }"
    program = Program("dies", "env_a", source, 128)
    try:
        with ThreadPoolExecutor(3) as threads:
            calls = [Call(text, f"run_{text}", {}, {}, 0.7, 100) for text in ("true", "false", "false ")]
            outcomes = [*threads.map(lambda call: patient.call(program, call, host), calls)]
        assert [outcome.reason for outcome in outcomes] == ["timeout", None, None]
        deadline = time.monotonic() + 10
        while patient._process_count and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (patient.sizes(), patient._process_count, patient._by_program) == ((0, 0), 0, {})
    finally:
        patient.close()


def test_a_full_pool_says_so(host: RecordingHost) -> None:
    small = Pool(size=1, idle_seconds=30, max_calls=10, wait_seconds=0.1)
    try:
        wait = Program("w", "env_a", b"export default () => new Promise((r) => setTimeout(r, 1000))", 128)
        other = Program("o", "env_a", IDENTITY.encode(), 128)
        small.warm(wait)
        busy = threading.Thread(target=small.call, args=(wait, Call("null", "run_1", {}, {}, 5, 100), host))
        busy.start()
        deadline = time.monotonic() + 5
        while small.sizes()[1] == 0 and time.monotonic() < deadline:
            time.sleep(0.005)
        with ThreadPoolExecutor(3) as threads:
            refused = [threads.submit(small.call, other, _call(number), host) for number in (2, 3, 4)]
            assert [type(call.exception()) for call in refused] == [Busy] * 3
        assert set(small._by_program) == {"w"}
        busy.join(10)
    finally:
        small.close()


def test_a_run_can_be_cancelled(pool: Pool, host: RecordingHost) -> None:
    outcomes: list[Any] = []
    program = Program("loop", "env_a", b"export default () => { while (true) {} }", 128)
    call = Call("null", "run_cancel", {}, {}, 20, 100)
    thread = threading.Thread(target=lambda: outcomes.append(pool.call(program, call, host)))
    thread.start()
    deadline = time.monotonic() + 10
    while not pool.cancel("run_cancel") and time.monotonic() < deadline:
        time.sleep(0.01)
    thread.join(10)
    assert outcomes[0].reason == "cancelled"


def test_a_pool_whose_watcher_did_not_start_starts_it_for_the_next_call(
    pool: Pool, host: RecordingHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program("one", "env_a", b"export default () => 1", 128)
    with monkeypatch.context() as full:
        refuse_new_threads(full, "function-pool")
        with pytest.raises(RuntimeError):
            pool.call(program, _call(1), host)
    assert pool.sizes() == (0, 0)
    assert pool.call(program, _call(2), host).output == "1"
    assert pool._watcher is not None
    assert pool._watcher.is_alive()


def test_a_cancellation_that_comes_as_the_run_ends_is_not_the_next_runs(
    pool: Pool, host: RecordingHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program("ends", "env_a", b"export default () => 1", 128)
    call = Process.call

    def cancelled_at_its_end(self: Process, this: Call, *others: Any) -> Any:
        outcome = call(self, this, *others)
        assert this.run_id != "run_1" or pool.cancel("run_1")
        return outcome

    monkeypatch.setattr(Process, "call", cancelled_at_its_end)
    assert [pool.call(program, _call(number), host).output for number in (1, 2)] == ["1", "1"]


def test_a_cancellation_that_takes_its_time_is_not_the_next_runs(
    pool: Pool, host: RecordingHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program("sleeps", "env_a", b"export default (ms: number) => new Promise((r) => setTimeout(r, ms))", 128)
    kill, begun = Process.kill, threading.Event()

    def late(self: Process, reason: Any) -> None:
        begun.wait(1)
        kill(self, reason)

    monkeypatch.setattr(Process, "kill", late)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(pool.call, program, Call("200", "run_1", {}, {}, 10, 100), host)
        while not pool._running:
            time.sleep(0.005)
        cancelling = threads.submit(pool.cancel, "run_1")
        first.result()
        second = threads.submit(pool.call, program, Call("300", "run_2", {}, {}, 10, 100), host)
        while "run_2" not in pool._running and not second.done():
            time.sleep(0.005)
        begun.set()
        assert cancelling.result()
        assert second.result().reason is None


def test_each_of_two_freed_processes_serves_a_waiting_call(
    host: RecordingHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pool, "QUEUE_SECONDS", 30.0)
    pair = Pool(size=2, idle_seconds=300, max_calls=1000, wait_seconds=30)
    program = Program("pair", "env_a", b"export default () => 1", 128)
    try:
        processes = []
        for _ in range(2):
            with monkeypatch.context() as impatient:
                impatient.setattr(Pool, "QUEUE_SECONDS", 0.0)
                process, *_ = pair._acquire(program, _call(0))
            processes.append(process)
        with ThreadPoolExecutor(2) as threads:
            waiting = [threads.submit(pair._acquire, program, _call(1)) for _ in range(2)]
            while len(pair._by_program["pair"].waiting) < 2:
                time.sleep(0.005)
            with pair._lock:
                for process in processes:
                    pair._add_idle(process, "pair")
            taken = [call.result(within(5)) for call in waiting]
        assert {process for process, *_ in taken} == set(processes)
        for process in processes:
            pair._discard(process, "pair")
    finally:
        pair.close()


def test_a_process_that_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    Process(128).close()

    def fails(*_: Any, **__: Any) -> Any:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr("functions.runtime.launch.subprocess.Popen", fails)
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no more processes"):
        Process(128)
    assert len(os.listdir("/proc/self/fd")) <= opened


def test_a_process_that_died_while_idle_is_replaced_unseen(pool: Pool, run_code: RunCode) -> None:
    assert run_code(IDENTITY, 1).output == 1
    process = next(iter(pool._idle))
    os.killpg(process.popen.pid, 9)
    process.popen.wait(5)
    assert run_code(IDENTITY, 2).output == 2


def test_nothing_of_a_module_runs_until_it_is_called(pool: Pool, run_code: RunCode) -> None:
    source = "let ticks = 0; setInterval(() => ticks++, 1); export default () => ticks;"
    pool.warm(Program(f"env_a:{hash(source)}", "env_a", source.encode(), 128))
    time.sleep(Pool.PAUSE_AFTER / 2)
    assert run_code(source).output == 0, "its process was not stopped yet, and did nothing"


def test_idle_processes_end_and_leave_nothing_behind(host: RecordingHost) -> None:
    brief = Pool(size=2, idle_seconds=60, max_calls=10, wait_seconds=1)
    try:
        brief.warm(Program("k", "env_a", IDENTITY.encode(), 128))
        process = next(iter(brief._idle))
        brief.idle_seconds = 0.1
        wait_until(lambda: not process.is_alive() and not process.scratch.exists())
        assert brief.sizes() == (0, 0)
    finally:
        brief.close()


def test_available_sandbox_layers_are_reported(pool: Pool, run_code: RunCode) -> None:
    run_code(IDENTITY, 1)
    sandbox_layers = next(iter(pool._idle)).sandbox_layers
    assert {"limits", "no_new_privileges"} <= set(sandbox_layers)
    if os.geteuid() == 0:
        assert "uid" in sandbox_layers


HANGING = b"await new Promise(() => setTimeout(() => {}, 60000));"


@pytest.fixture
def checking(pool: Pool) -> Pool:
    """Tries modules out: a module that hangs has half a minute."""
    pool.wait_seconds, pool.load_seconds = 0.2, 30.0
    return pool


def until_hanging(pool: Pool, number: int) -> None:
    deadline = time.monotonic() + 30
    while len(pool._checks._slots) < number:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def end_all(pool: Pool) -> None:
    for slot in list(pool._checks._slots):
        assert slot.on_reclaim is not None
        slot.on_reclaim()


def test_modules_that_hang_while_they_are_tried_out_are_few_at_a_time(checking: Pool) -> None:
    checking.load_seconds = 1.5
    checking._checks.slow_after = checking.SLOW_CHECK = 1.0
    hanging = Program("hangs", "env_a", HANGING, 64)
    with ThreadPoolExecutor(3) as threads:
        tried = [threads.submit(checking.check, hanging) for _ in range(3)]
        raised = [each.exception() for each in tried]
    assert sum(isinstance(error, Busy) for error in raised) == 1
    assert sum("longer than 1.5 s" in str(error) for error in raised if isinstance(error, LoadFailed)) == 2


def test_hanging_modules_block_no_environment_that_deployed_before(checking: Pool) -> None:
    good = Program("good", "env_good", b"export default () => 1;", 64)
    checking.wait_seconds = 10.0
    checking.check(good)
    with ThreadPoolExecutor(2) as threads:
        tried = [threads.submit(checking.check, Program(f"hangs {each}", f"env_{each}", HANGING, 64)) for each in "ab"]
        until_hanging(checking, 2)
        checking.check(good)
        assert not any(each.done() for each in tried)
        end_all(checking)
        # On a slow machine one may not have started yet.
        assert all(isinstance(each.exception(), LoadFailed | StartFailed) for each in tried)


def test_hanging_modules_give_way_to_a_first_deployment(checking: Pool) -> None:
    checking._checks.slow_after, checking.wait_seconds = 0.5, 30.0
    with ThreadPoolExecutor(2) as threads:
        tried = [threads.submit(checking.check, Program(f"hangs {each}", f"env_{each}", HANGING, 64)) for each in "ab"]
        until_hanging(checking, 2)
        checking.check(Program("good", "env_good", b"export default () => 1;", 64))
        gone = [each for each in tried if each.done()]
        assert [str(each.exception()) for each in gone] == [
            "loading took too long while other deployments waited for their check"
        ]
        assert all(isinstance(each.exception(), Busy) for each in gone)
        end_all(checking)
    assert checking._checks._slots == []
