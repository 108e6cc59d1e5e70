"""Which of Node's modules a function may import, that they work, and that none of them is a way to the host."""

import hmac
import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from functions.runtime import imports
from functions.runtime.errors import LoadFailed
from functions.runtime.launch import deno
from tests.functions.conftest import RunCode
from tests.support.timing import within

EVERY = [*imports.ALLOWED, *imports.REWRITTEN]
IMPORT_EVERY = "".join(f'import * as m{number} from "node:{name}"; ' for number, name in enumerate(EVERY))
MODULES = f"[{', '.join(f'm{number}' for number in range(len(EVERY)))}]"


def test_every_module_that_this_deno_has_is_allowed_or_refused() -> None:
    """A new release of Deno may bring new ones."""
    program = 'import { builtinModules } from "node:module"; console.log(JSON.stringify(builtinModules))'
    said = subprocess.run(
        [deno(), "eval", "--no-config", program], check=True, capture_output=True, env={"HOME": "/nonexistent"}
    )
    known = {*imports.ALLOWED, *imports.REFUSED, *imports.REWRITTEN}
    assert {name.removeprefix("node:") for name in json.loads(said.stdout)} <= known
    assert len(known) == len(imports.ALLOWED) + len(imports.REFUSED) + len(imports.REWRITTEN)


@pytest.mark.parametrize("prefix", ["node:", ""])
def test_what_is_allowed_loads_under_both_spellings(run_code: RunCode, prefix: str) -> None:
    imported = "".join(f'import * as m{number} from "{prefix}{name}"; ' for number, name in enumerate(EVERY))
    outcome = run_code(f"{imported} export default () => {MODULES}.map((each) => Object.keys(each).length > 0)")
    assert outcome.output == [True] * len(EVERY), outcome.error


def test_the_guide_names_what_is_allowed() -> None:
    guide = Path("docs/reference/functions.md").read_text()
    named = guide[guide.index("`node:assert`") : guide.index("Others are refused")]
    modules = set(re.findall(r"`(?:node:)?([a-z_]+)`", named))
    assert modules == {name for name in EVERY if "/" not in name and not name.startswith("_")}


@pytest.mark.parametrize("name", ["fs", "child_process", "worker_threads", "module", "vm", "v8", "zlib", "http"])
def test_what_is_refused_is_not_loaded_and_says_so(run_code: RunCode, name: str) -> None:
    for spelling in (f"node:{name}", name):
        with pytest.raises(
            LoadFailed, match=r"not one of the supported Node modules.*\n +at function\.ts:1:20"
        ) as refused:
            run_code(f'import * as m from "{spelling}"; export default () => Object.keys(m)')
        assert f'"{spelling}"' in str(refused.value)


def test_what_is_refused_is_refused_however_it_is_asked_for(run_code: RunCode) -> None:
    ways = """
        (name) => import(name), (name) => import("NODE:" + name.slice(5)), (name) => import(" " + name + "\\n"),
        (name) => import("node:\\t" + name.slice(5)), (name) => import(name + "?x"), (name) => import(name + "#x"),
        (name) => import(name + "/"), (name) => import("node:/" + name.slice(5)), (name) => import("node:%" + name.slice(5)),
        (name) => import(name, {with: {type: "json"}}), (name) => import(name, {with: {type: "text"}}),
        (name) => import("data:text/javascript,export * from %22" + name + "%22"),
        (name) => import("data:text/javascript,export * from %22data:text/javascript,export%20*%20from%20%2522" + name + "%2522%22"),
        (name) => import(URL.createObjectURL(new Blob(["export * from '" + name + "'"], {type: "text/javascript"}))),
        (name) => import(import.meta.resolve(name)), (name) => import(new URL(name)),
        (name) => new Function("name", "return import(name)")(name), (name) => (0, eval)("import('" + name + "')")"""
    source = f"""export default async (names: string[]) => {{
        const opened: string[] = [], ways: any[] = [{ways}];
        for (const name of names) for (const [number, way] of ways.entries())
            try {{ opened.push(number + " " + Object.keys(await way("node:" + name))) }} catch {{ /* refused */ }}
        return opened }}"""
    names = [*imports.REFUSED, "internal/util", "fs/promises/x"]
    assert run_code(source, names, timeout=30).output == []
    for inner in ("ext:core/mod.js", "ext:deno_node/fs.ts", "internal:fs", "deno:core", "checkin:core"):
        assert (
            run_code("export default async (m: string) => Object.keys(await import(m))", inner).reason == "user_error"
        )


USES = """
    import * as crypto from "crypto";
    import { pipeline } from "node:stream/promises";
    import { PassThrough, Readable, Transform } from "node:stream";
    import { text } from "node:stream/consumers";
    import { EventEmitter } from "events";
    import { Buffer } from "buffer";
    import path from "path";
    import process, { env } from "process";
    import util from "util";
    import console from "console";
    const uses: Record<string, () => unknown> = {
        hmac: () => crypto.createHmac("sha256", "key").update("text").digest("hex"),
        hash: () => ["md5", "sha1", "sha512"].map((name) => crypto.createHash(name).update("x").digest("base64").length),
        random: () => [crypto.randomBytes(8).length, crypto.randomUUID().length, crypto.randomInt(1)],
        equal: () => crypto.timingSafeEqual(Buffer.from("a"), Buffer.from("a")),
        cipher: () => {
            const key = crypto.randomBytes(32), iv = crypto.randomBytes(12), to = crypto.createCipheriv("aes-256-gcm", key, iv);
            const sealed = Buffer.concat([to.update("hello"), to.final()]);
            const back = crypto.createDecipheriv("aes-256-gcm", key, iv);
            back.setAuthTag(to.getAuthTag());
            return back.update(sealed, undefined, "utf8") + back.final("utf8");
        },
        keys: async () => [crypto.pbkdf2Sync("p", "s", 10, 32, "sha256").length, (await util.promisify(crypto.scrypt)("p", "s", 32) as any).length],
        signature: () => {
            const { privateKey, publicKey } = crypto.generateKeyPairSync("ec", { namedCurve: "P-256" });
            return crypto.createVerify("SHA256").update("x").verify(publicKey, crypto.createSign("SHA256").update("x").sign(privateKey));
        },
        streams: async () => {
            const upper = new Transform({ transform(piece, _, done) { done(null, String(piece).toUpperCase()) } });
            const out = new PassThrough();
            await pipeline(Readable.from(["a", "b"]), upper, out);
            return text(out);
        },
        web: () => new Response(Readable.toWeb(Readable.fromWeb(new Blob(["abc"]).stream() as any)) as any).text(),
        listeners: () => { const e = new EventEmitter(); for (let i = 0; i < 20; i++) e.on("x", () => {}); return e.listenerCount("x") },
        old: () => [util.deprecate(() => 5, "old", "DEP")(), new (Buffer as any)("x").length],
        path: () => path.resolve("a"),
        process: () => [Object.keys(process.env).length, env === process.env, process.cwd()],
        tick: () => new Promise((done) => process.nextTick(done, "later")),
        console: () => console.log("said") ?? null,
    };
"""


def test_what_is_allowed_works(run_code: RunCode) -> None:
    source = USES + (
        "export default async () => { const said: any = {}; for (const name in uses) said[name] = await uses[name](); return said }"
    )
    for _ in range(2):
        outcome = run_code(source)
        assert outcome.output == {
            "hmac": "6afa9046a9579cad143a384c1b564b9a250d27d6f6a63f9f20bf3a7594c9e2c6",
            "hash": [24, 28, 88], "random": [8, 36, 0], "equal": True, "cipher": "hello", "keys": [32, 32],
            "signature": True, "streams": "AB", "web": "abc", "listeners": 20, "old": [5, 1], "path": "/a",
            "process": [0, True, "/"], "tick": "later", "console": None,
        }, outcome.error  # fmt: skip
        assert [line.text for line in outcome.logs] == ["said"]


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ('import { createHmac } from "node:crypto";', ["crypto"]),
        ("import{createHmac as a}from'crypto';", ["crypto"]),
        ('import"node:stream";export*from"stream/promises"', ["stream", "stream/promises"]),
        ('const c = await import(`node:crypto`); import ( "node:crypto" )', ["crypto"]),
        ('const c = await import(/* @vite-ignore */ "node:crypto"); import e from /**/ "events"', ["crypto", "events"]),
        ('const sent = {"stream": true, "crypto": "stream"}; crypto.subtle; import url from "node:url"', ["url"]),
        ('import fs from "node:fs"; import x from "./crypto"; import "_stream_x"; import "process"', []),
        ("const from = 'crypto'; f('crypto')", []),
    ],
)
def test_only_what_is_imported_is_loaded_ahead(source: str, modules: list[str]) -> None:
    assert imports.preloaded(source.encode()) == modules


@pytest.mark.parametrize("word", ["from", "import(", "typeof require(", "from(", '"', "from/*", "from/**/"])
def test_what_is_imported_is_found_in_one_pass_of_the_source(word: str) -> None:
    """In a web process, whose other requests stand still meanwhile."""
    began = time.monotonic()
    source = (word + " " * 256 * 1024) * 2
    assert (imports.preloaded(source.encode()), imports.required(source.encode())) == ([], [])
    assert time.monotonic() - began < within(1)


SEARCH = """
    const BAD = /^(binding|_linkedBinding|getBuiltinModule|dlopen|reallyExit|execve|readFileSync|readSync|writeSync|openSync|spawnSync|execSync|fork|createRequire|_load|_?stdout|_?stderr|_?stdin|loadEnvFile|ops|core|op_.*|createConnection|createServer|_?kill|chdir|runInThisContext|setFlagsFromString|mainModule|loadExtScript|lazyLoad)$/;
    /** Everything that can be reached from `roots` and is not `known`: the paths of what has a name that would be a way out. */
    function search(roots: any[], known: Set<any>): string[] {
        const found: string[] = [], todo: [any, string][] = roots.map((root, number) => [root, String(number)]);
        while (todo.length) {
            const [at, path] = todo.pop()!;
            if (at === null || (typeof at !== "object" && typeof at !== "function") || known.has(at)) continue;
            known.add(at);
            let keys: any[] = [];
            try { keys = Reflect.ownKeys(at) } catch { continue }
            for (const key of keys) {
                const property = Reflect.getOwnPropertyDescriptor(at, key);
                if (!property) continue;
                let value: any;
                try { value = at[key]; if (value instanceof Promise) value.catch(() => {}) } catch { /* a getter of a prototype */ }
                const name = path + "." + String(key);
                if (BAD.test(typeof key === "symbol" ? key.description ?? "" : key) && value !== undefined) found.push(name);
                for (const next of [value, property.value, property.get, property.set]) todo.push([next, name]);
            }
            try { todo.push([Reflect.getPrototypeOf(at), path + ".__proto__"]) } catch { /* a proxy's */ }
        }
        return found.filter((name) => !name.endsWith("constants.dlopen"));
    }
"""


def test_the_recipe_for_stripe_verifies_signatures(run_code: RunCode) -> None:
    recipes = Path("docs/how-to/recipes.md").read_text()
    source = recipes.partition("cat > paid.js <<'END'\n")[2].partition("\nEND\n")[0]
    body, secrets = '{"type": "paid"}', {"STRIPE_SECRET": "whsec"}

    def signed(at: float, text: str = body) -> str:
        return f"t={at:.0f},v1={hmac.new(b'whsec', f'{at:.0f}.{text}'.encode(), 'sha256').hexdigest()}"

    def told(text: str, signature: str) -> dict[str, object]:
        return {"body": text, "headers": {"stripe-signature": signature}}

    now = time.time()
    assert run_code(source, told(body, signed(now)), secrets=secrets).output == "not for us"
    assert run_code(source, {"body": body, "headers": {}}, secrets=secrets).error["message"] == "not Stripe's"
    for signature in (signed(now, body + " "), signed(now - 400), "t=1", f"t={now:.0f},v1=aa", ""):
        refused = run_code(source, told(body, signature), secrets=secrets)
        assert refused.error["message"] == "not Stripe's", signature


def test_nothing_that_is_reached_from_a_module_is_a_way_out(run_code: RunCode) -> None:
    """Not by any chain of properties, prototypes and getters, from all of them and the globals."""
    source = f"{IMPORT_EVERY} {SEARCH} export default () => {{ const known = new Set(), found = search([...{MODULES}, globalThis], known); return [known.size, found] }}"
    count, found = run_code(source, timeout=30, memory_mb=512).output
    assert count > 2000
    assert found == []


def test_nothing_that_is_handed_to_patched_builtins_is_a_way_out(run_code: RunCode) -> None:
    """Every method and getter of the builtins that Deno's and Node's own code could use is replaced by one that keeps what
    it is given; then that code is put to work, warnings and errors included."""
    source = f"""{IMPORT_EVERY} {SEARCH} {USES}
    const apply = Reflect.apply, define = Object.defineProperty, caught = new Set<any>(), add = caught.add.bind(caught);
    let busy = false;
    const keep = (value: any) => {{ if (value !== null && (typeof value === "object" || typeof value === "function")) add(value) }};
    const trap = (owner: any, name: PropertyKey) => {{
        const property = Object.getOwnPropertyDescriptor(owner, name);
        if (!property) return;
        const wrapped = (method: any) => function (this: any, ...given: any[]) {{
            if (!busy) {{ busy = true; keep(this); keep(method); for (let i = 0; i < given.length; i++) keep(given[i]); busy = false }}
            return apply(method, this, given) }};
        try {{
            if (typeof property.value === "function") define(owner, name, {{...property, value: wrapped(property.value)}});
            else if (property.get) define(owner, name, {{...property, get: wrapped(property.get)}});
        }} catch {{ try {{ owner[name] = wrapped(property.get!()) }} catch {{ /* it cannot be replaced */ }} }}
    }};
    export default async (_: unknown, ctx: any) => {{
        const before = new Set<any>();
        search([...{MODULES}, globalThis, ctx], before);
        (Error as any).prepareStackTrace = (_: unknown, sites: any[]) => {{
            for (const site of sites) {{ keep(site.getThis?.()); keep(site.getFunction?.()) }}
            return "" }};
        const prototypes = [Function, Array, Map, Set, WeakMap, Promise, String, RegExp, Object, Uint8Array, EventEmitter, Buffer, Readable, PassThrough]
            .map((kind: any) => kind.prototype);
        for (const owner of [...prototypes, Object.getPrototypeOf(Uint8Array.prototype)])
            for (const name of Reflect.ownKeys(owner)) if (name !== "constructor" && name !== "__proto__") trap(owner, name);
        for (const owner of [Object, Reflect, Array, Promise, JSON, Symbol, Error, ArrayBuffer, Number] as any[])
            for (const name of Reflect.ownKeys(owner)) if (name !== "prototype") trap(owner, name);
        const failed: string[] = [];
        for (const name in uses) try {{ await uses[name]() }} catch (error: any) {{ failed.push(name + ": " + error.message) }}
        for (const use of [
            () => ctx.rows.list("tasks"), () => ctx.fetch("https://example.com/", {{method: "POST", body: "x"}}),
            () => crypto.createHash("none"), () => new Promise((done) => crypto.pbkdf2("p", "s", 1, 8, "sha1", done)),
            () => util.inspect(globalThis, {{showHidden: true, depth: 3, showProxy: true}}), () => util.debuglog("x")("y"),
            () => new Promise((done) => setTimeout(done, 5)), () => new Promise((done) => setImmediate(done)),
            () => process.emitWarning("x"), () => {{ throw new Error(new Error("x").stack) }}, () => structuredClone(new Map()),
            () => new PassThrough().on("error", () => {{}}).destroy(new Error("x")), () => globalThis.crypto.subtle.digest("SHA-1", new Uint8Array(1)),
        ]) try {{ await use() }} catch {{ /* what matters is what it hands over */ }}
        busy = true;
        (Error as any).prepareStackTrace = undefined;
        return [caught.size, failed, search([...caught].filter((each) => !before.has(each)), before)] }}"""
    outcome = run_code(source, timeout=30, memory_mb=512)
    assert outcome.error is None
    count, failed, found = outcome.output
    assert count > 100
    assert failed == []
    assert found == []


LATE = """
    import util from "node:util"; import { EventEmitter } from "node:events";
    const apply = Reflect.apply, seen = new Set<any>();
    for (const owner of [EventEmitter, EventEmitter.prototype] as any[])
        for (const name of Reflect.ownKeys(owner)) {
            const was = Object.getOwnPropertyDescriptor(owner, name)!.value;
            if (typeof was === "function" && name !== "constructor") owner[name] = function (...given: any[]) { seen.add(this); return apply(was, this, given) };
        }
    export default async (names: string[]) => {
        const refused: string[] = [];
        for (const name of names) try { await import("node:" + name) } catch (error: any) { if (/Blocked/.test(error.message)) refused.push(name) }
        const old = util.deprecate(() => "old", "it is old", "DEP")();
        new EventEmitter().on("x", () => {});
        const ways = ["getBuiltinModule", "binding", "stdout", "reallyExit"];
        return [refused, old, [...seen].length > 0, ways.filter((way) => [...seen].some((each) => each?.[way]))] }"""


def test_a_module_that_comes_up_late_brings_nobody_a_process(run_code: RunCode) -> None:
    """Node's own `process` is an EventEmitter; what makes it is refused, or was loaded before the code."""
    names = [name for name in imports.ALLOWED if name not in ("util", "events")]
    assert run_code(LATE, names).output == [names, "old", True, []]


def test_warm_process_is_reused_after_preloaded_modules(run_code: RunCode) -> None:
    source = (
        'import { createHash } from "node:crypto"; let n = 0; export default () => { createHash("md5"); return ++n }'
    )
    assert [run_code(source).output for _ in range(3)] == [1, 2, 3]


def test_neither_process_nor_console_of_nodes_writes_into_the_channel(run_code: RunCode) -> None:
    source = """import process from "node:process"; import * as said from "node:console";
        import { PassThrough } from "node:stream";
        export default () => [Object.keys(process).sort(), Object.keys(said).includes("Console"), process === globalThis.process]"""
    assert run_code(source).output == [["cwd", "emitWarning", "env", "nextTick"], False, True]


BUNDLED = """
    var __require = ((x) => typeof require !== "undefined" ? require : typeof Proxy !== "undefined" ? new Proxy(x, {
        get: (a, b) => (typeof require !== "undefined" ? require : a)[b]
    }) : x)(function(x) { if (typeof require !== "undefined") return require.apply(this, arguments); throw Error('Dynamic require of "' + x + '" is not supported'); });
    var __commonJS = (cb, mod) => function __require2() { return mod || (0, cb[Object.keys(cb)[0]])((mod = { exports: {} }).exports, mod), mod.exports; };
    var require_lib = __commonJS({ "lib.js"(exports, module) {
        var crypto = __require("crypto"), { inherits } = __require("node:util"), { Readable } = __require("stream"), Buffer = __require("buffer").Buffer;
        module.exports = (text) => [crypto.createHash("md5").update(Buffer.from(text)).digest("hex"), typeof inherits, typeof Readable.from];
        module.exports.missing = () => __require("fs");
    } });
    var lib = require_lib();
"""


def test_what_a_bundler_makes_of_commonjs_finds_what_it_requires(run_code: RunCode) -> None:
    """As esbuild writes it, `--format=esm`; its shim asks for a global `require` first."""
    outcome = run_code(BUNDLED + 'export default () => lib("x")')
    assert outcome.output == ["9dd4e461268c8034f5c8564e155c67a6", "function", "function"], outcome.error
    outcome = run_code(BUNDLED + "export default () => lib.missing()")
    assert outcome.error["message"] == '"fs" is not among the modules that can be required here'
    assert imports.required(BUNDLED.encode()) == ["buffer", "crypto", "stream", "util"]
    assert imports.required(b'const a = f("crypto"), b = {require: 1}') == []


def test_a_required_module_is_as_harmless_as_an_imported_one(run_code: RunCode) -> None:
    calls = "".join(f'require("{name}"), ' for name in imports.ALLOWED)
    source = f"{SEARCH} typeof require; export default () => search([{calls} globalThis], new Set())"
    assert run_code(source, timeout=30, memory_mb=512).output == []


LEFT = """
    import timers from "node:timers"; import later from "node:timers/promises"; import crypto from "node:crypto";
    import { PassThrough, Readable } from "node:stream"; import { EventEmitter } from "node:events";
    import { AsyncResource } from "node:async_hooks";
    const bus = new EventEmitter();
    const derive = (then: () => void) => crypto.pbkdf2("p", "s", 10, 32, "sha512", then);
    export default async (who: string) => {
        const say = (what: string) => console.log(who + " " + what);
        if (who === "first") {
            timers.setInterval(() => say("interval"), 1);
            (async () => { for await (const _ of later.setInterval(1)) say("awaited interval") })();
            const again = () => timers.setTimeout(() => timers.setImmediate(() => derive(() => { say("loop"); again() })), 1);
            again();
            (async () => { for await (const _ of Readable.from((async function* () { for (;;) yield await later.setTimeout(1) })())) say("stream") })();
            bus.on("bound", AsyncResource.bind(() => say("bound")));
            timers.setTimeout(() => { throw new Error("late") }, 10);
            timers.setTimeout(() => Promise.reject(new Error("later")), 20);
            return who;
        }
        await later.setTimeout(50);
        bus.emit("bound");
        say("timer");
        await new Promise<void>((done) => derive(() => { say("derived"); done() }));
        await new Promise<void>((done) => timers.setImmediate(() => { say("immediate"); done() }));
        await new Promise<void>((done) => process.nextTick(() => { say("tick"); done() }));
        await new Promise<void>((done) => new PassThrough().on("data", () => { say("data"); done() }).write("x"));
        return who;
    }"""


def test_leftover_work_in_node_modules_does_not_log_in_the_next_call(run_code: RunCode) -> None:
    assert run_code(LEFT, "first").output == "first"
    for who in ("second", "third"):
        outcome = run_code(LEFT, who)
        assert (outcome.output, outcome.error) == (who, None)
        assert [line.text for line in outcome.logs] == [
            f"{who} {what}" for what in ("timer", "derived", "immediate", "tick", "data")
        ]
