"""The sandbox without Deno's protection: its permissions removed, or its whole program replaced by hostile code.

The other tests attack with what a function can write. Here the runner itself is hostile and Deno allows all,
so that only the kernel's sandbox_layers and the parent's reading of frames stand. Threats T20 to T24, findings 1 to 3, F23.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from functions.runtime import launch, process, scratch
from functions.runtime.calls import Call, Outcome
from functions.runtime.channel import Channel
from functions.runtime.errors import LoadFailed, StartFailed
from functions.runtime.pool import Pool
from functions.runtime.process import Process
from tests.functions.conftest import RecordingHost, RunCode
from tests.support.service import wait_for
from tests.support.timing import within

PRELUDE = """
const out = (text: string) => {
  const body = new TextEncoder().encode(text), head = new Uint8Array(4);
  new DataView(head.buffer).setUint32(0, body.length, true);
  Deno.stdout.writeSync(head); Deno.stdout.writeSync(body);
};
const exactly = async (n: number) => {
  const into = new Uint8Array(n);
  for (let got = 0; got < n;) got += (await Deno.stdin.read(into.subarray(got))) ?? Deno.exit(0);
  return into;
};
const next = async () => {
  const n = new DataView((await exactly(4)).buffer).getUint32(0, true);
  return JSON.parse(new TextDecoder().decode(await exactly(n)));
};
out('{"t":"ready"}'); await next(); out('{"t":"loaded"}');
const CHUNK = new Uint8Array(1 << 16);  // one: on a busy machine V8 collects too late, and memory ends the call
const frame = await next(), tag = frame.tag;
const done = (output: unknown) => out('{"t":"done","tag":"' + tag + '","output":' + JSON.stringify(output) + "}");
"""
Enemy = Callable[..., Outcome]


@pytest.fixture
def enemy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: RecordingHost) -> Iterator[Enemy]:
    """Run a program of the enemy's instead of the runner, with every permission that Deno could give."""
    permissive = ("run", "--quiet", "--no-prompt", "--no-config", "--no-lock", "--allow-all")
    made: list[Process] = []

    def run(program: str, *, timeout: float = 5, memory_mb: int = 128) -> Outcome:
        file = tmp_path / "enemy.ts"
        file.write_text(PRELUDE + program)
        with monkeypatch.context() as patched:
            patched.setattr(launch, "FLAGS", permissive)
            patched.setattr(launch, "RUNNER", file)
            one = Process(memory_mb)
        made.append(one)
        one.wait_until_ready()
        one.load(b"", seconds=10)
        return one.call(Call("null", "run_x", {}, {}, timeout, 1_000_000), host)

    yield run
    for one in made:
        one.close()


def has(wall: str) -> bool:
    return wall in launch.sandbox_layers_of_this_host()


def tried(outcome: Outcome) -> dict[str, str]:
    assert outcome.reason is None, outcome.error
    assert outcome.output is not None
    return dict(json.loads(outcome.output))


ATTEMPT = """
const said: Record<string, string> = {};
const attempt = async (name: string, what: () => unknown) => {
  try { said[name] = "done: " + String(await what()).slice(0, 60) } catch (error) { said[name] = "refused: " + error.name }
};
"""


def test_a_running_version_can_load_code_in_the_runner_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade replaces the runner before the processes, so the names of its frame stay."""
    written: list[bytes] = []
    write = Channel.write_bytes
    monkeypatch.setattr(
        Channel, "write_bytes", lambda self, body, deadline: (written.append(body), write(self, body, deadline))
    )
    one = Process(64, preloaded=["crypto"])
    try:
        one.wait_until_ready()
        one.load(b'import { createHash } from "node:crypto"; export default () => 1', seconds=10)
    finally:
        one.close()
    [frame] = written
    assert sorted(json.loads(frame)) == ["ahead", "required", "source", "t"]


@pytest.mark.skipif(not has("landlock"), reason="this host has no Landlock")
def test_without_denos_permissions_there_are_still_no_files(enemy: Enemy, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    neighbour = Process(64)
    try:
        paths = ["/etc/passwd", "/proc/self/environ", f"/proc/{os.getpid()}/environ", f"/proc/{os.getpid()}/cmdline"]
        paths += [str(secret), str(neighbour.scratch / "runner.ts"), str(launch.RUNNER.resolve()), "/dev/mem"]
        program = f"""{ATTEMPT}
        for (const path of {json.dumps(paths)}) await attempt(path, () => Deno.readTextFileSync(path));
        for (const path of ["/", "/tmp", "/home", "/root", "/proc", {json.dumps(str(neighbour.scratch.parent))}])
            await attempt("list " + path, () => [...Deno.readDirSync(path)].length);
        for (const path of ["/tmp/enemy", "/dev/shm/enemy", "/var/tmp/enemy"])
            await attempt("write " + path, () => Deno.writeTextFileSync(path, "x"));
        await attempt("run", () => new Deno.Command("/bin/sh", {{args: ["-c", "id"]}}).outputSync().code);
        await attempt("run deno", () => new Deno.Command(Deno.execPath(), {{args: ["--version"]}}).outputSync().code);
        done(said);"""
        said = tried(enemy(program))
    finally:
        neighbour.close()
    assert {name: what for name, what in said.items() if not what.startswith("refused")} in (
        {},
        # Its own binary it may run: behind the same sandbox_layers, within the same limits, in the group that is
        # killed.
        {"run deno": "done: 0"},
        {"run deno": "done: 1"},
    ), said


@pytest.mark.skipif(not has("namespaces"), reason="this host gives no network namespace")
def test_without_denos_permissions_there_is_still_no_network(enemy: Enemy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as canary, socket.socket(socket.AF_UNIX) as local:
        canary.settimeout(0.2)
        name = f"\0platform-functions-test-{os.getpid()}"
        local.bind(name)
        local.listen(1)
        local.settimeout(0.2)
        port = canary.getsockname()[1]
        program = f"""{ATTEMPT}
        await attempt("tcp", () => Deno.connect({{hostname: "127.0.0.1", port: {port}}}));
        await attempt("fetch", async () => (await fetch("http://127.0.0.1:{port}/")).status);
        await attempt("metadata", () => Deno.connect({{hostname: "169.254.169.254", port: 80}}));
        await attempt("outside", () => Deno.connect({{hostname: "1.1.1.1", port: 53}}));
        await attempt("dns", () => Deno.resolveDns("example.com", "A"));
        await attempt("unix", () => Deno.connect({{transport: "unix", path: "\\0" + {json.dumps(name[1:])}}} as any));
        done(said);"""
        said = tried(enemy(program, timeout=20))
        assert {name: what for name, what in said.items() if not what.startswith("refused")} == {}
        for listener in (canary, local):
            with pytest.raises(TimeoutError):
                listener.accept()


def test_sandbox_without_deno_permissions_signals_no_other_process(enemy: Enemy) -> None:
    if not (has("landlock") or has("uid")):
        pytest.skip("this host separates no processes")
    victim = Process(64)
    try:
        program = f"""{ATTEMPT}
        for (const pid of [{os.getpid()}, {victim.popen.pid}, 1])
            await attempt("kill " + pid, () => Deno.kill(pid, "SIGKILL"));
        done(said);"""
        said = tried(enemy(program))
        assert all(what.startswith("refused") for what in said.values()), said
        assert victim.is_alive()
    finally:
        victim.close()


def test_what_fills_its_scratch_space_stops_there_and_leaves_it_empty(enemy: Enemy, run_code: RunCode) -> None:
    """F23: a file ends at 16 MB, descriptors at 64; the run fails, the next is served, the space comes back."""
    outcome = enemy("""
        const file = Deno.openSync("fill", {create: true, write: true}), piece = new Uint8Array(1 << 20);
        let written = 0, opened = 0;
        try { for (;;) written += file.writeSync(piece) } catch { /* EFBIG, or the signal ends us */ }
        try { for (;;) { Deno.openSync("fill"); opened++ } } catch { /* EMFILE */ }
        done({written, opened});""")
    assert outcome.reason in (None, "crashed")
    if outcome.output is not None:
        said = json.loads(outcome.output)
        assert said["written"] <= 16 << 20
        assert said["opened"] < 64
    assert run_code("export default () => 1").output == 1


@pytest.mark.parametrize(
    "program",
    [
        "out('null')",
        "out('\\u00ff')",
        "Deno.stdout.writeSync(new Uint8Array([255, 255, 255, 255]))",
        'out(\'{"t":"done","tag":"\' + "0".repeat(32) + \'","output":1}\')',
        'for (;;) out(\'{"t":"log","tag":"\' + tag + \'","level":"info","text":"x"}\')',
    ],
)
def test_a_program_that_speaks_out_of_turn_is_ended_for_that(enemy: Enemy, program: str) -> None:
    outcome = enemy(program + "\nfor (;;) await new Promise(() => {})", timeout=20)
    assert (outcome.output, outcome.reason, outcome.error["name"]) == (None, "protocol", "ProtocolViolation")
    assert len(outcome.logs) <= process.MAX_LOG_LINES + 1


@pytest.mark.parametrize(
    "program",
    [
        "done('own'); done('second')",  # one answer too many is the next call's business
        'out(\'{"t":"done","tag":"\' + "0".repeat(32) + \'","output":"forged"}\')',
        'out(\'{"t":"done","output":"forged"}\')',
        'out(\'{"t":"done","tag":"\' + tag + \'","output":}\')',
        'out(\'{"t":"done","tag":"\' + tag + \'","result":1}\')',
        'out(\'{"t":"done","tag":"\' + tag + \'","output":1}}\')',
        'out(\'{"t":"call","tag":"\' + tag + \'","n":-1,"op":"rows.get","args":{}}\')',
        'out(\'{"t":"call","tag":"\' + tag + \'","n":1,"op":"rows.get\\\\"","args":{}}\')',
        'out(\'{"t":"log","tag":"\' + tag + \'","level":{},"text":[[1]]}\'); done(1)',
        'out(\'{"t":"log","tag":"\' + tag + \'","text":"\' + "[".repeat(100000) + \'"\')',
        'out(\'{"t":"failed","tag":"\' + tag + \'","error":[1,{"message":5}]}\')',
        'out(\'{"t":"failed","tag":"\' + tag + \'","error":\' + "[".repeat(100000) + "}")',
        'for (;;) out(\'{"t":"log","tag":"\' + tag + \'","level":"info","text":"x"}\')',
        "Deno.stdout.writeSync(new Uint8Array([255, 255, 255, 255]))",
        "Deno.stdout.writeSync(new Uint8Array([255, 255, 255, 0])); for (;;) Deno.stdout.writeSync(CHUNK)",
        "Deno.stdout.writeSync(new Uint8Array([9, 0, 0, 0, 123])); Deno.exit(0)",
        "CHUNK.fill(120); for (;;) Deno.stderr.writeSync(CHUNK)",
        "Deno.stdout.close(); for (;;) {}",
        "Deno.exit(0)",
        "out('null'); out('[]'); out('\"x\"')",
        "out('\\u00ff')",
    ],
)
def test_whatever_the_program_says_the_parent_ends_the_call_in_time(enemy: Enemy, program: str) -> None:
    own = psutil.Process()
    before, began = own.memory_info().rss, time.monotonic()
    outcome = enemy(program, timeout=2)
    assert time.monotonic() - began < within(4)
    assert outcome.output in (None, '"own"', "1")
    assert outcome.reason in (None, "protocol", "timeout", "crashed", "user_error")
    assert len(outcome.logs) <= process.MAX_LOG_LINES + 1
    assert own.memory_info().rss - before < 150 << 20
    if outcome.error is not None:
        json.dumps(outcome.error).encode()
        assert {type(each) for each in outcome.error.values()} <= {str, type(None)}


def test_the_limit_of_an_output_is_not_the_programs_to_hold(enemy: Enemy) -> None:
    outcome = enemy("done('x'.repeat(1_000_001))")
    assert (outcome.reason, outcome.output) == ("output_too_large", None)
    assert outcome.error is not None
    assert outcome.error["name"] == "OutputTooLarge"


def test_a_process_that_says_too_much_before_it_is_ready_does_not_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "enemy.ts"
    monkeypatch.setattr(launch, "RUNNER", file)
    for program, error in (
        ("Deno.stdout.writeSync(new Uint8Array([255, 255, 255, 255]))", StartFailed),
        ("throw new Error('no')", StartFailed),
    ):
        file.write_text(program)
        one = Process(64)
        try:
            with pytest.raises(error):
                one.wait_until_ready()
        finally:
            one.close()


def test_v8_flags_raised_by_the_program_raise_no_limit(enemy: Enemy) -> None:
    """Finding 3: the heap's limit is V8's to change; the process's is not. Code cannot import `node:v8` at all."""
    outcome = enemy(
        """
        const v8 = await import("node:" + "v8");
        v8.setFlagsFromString("--max-old-space-size=8000"); v8.setFlagsFromString("--max-heap-size=8000");
        const a: any[] = []; while (true) a.push(new Array(1e6).fill(1.5));""",
        timeout=10,
    )
    assert outcome.reason in ("memory", "crashed") or (outcome.error or {}).get("name") == "RangeError"


def test_storage_is_not_shared(run_code: RunCode) -> None:
    """Finding 2: what Deno keeps by main module would be kept for every tenant."""
    names = ["localStorage", "sessionStorage", "caches", "Worker", "BroadcastChannel", "WebSocket", "EventSource"]
    source = f"export default () => {json.dumps(names)}.map((name) => typeof (globalThis as any)[name])"
    assert run_code(source).output == ["undefined"] * len(names)
    deeper = """export default () => {
        const found: string[] = [];
        for (const name of ["localStorage", "caches", "Worker", "WebSocket"]) {
            let at: any = globalThis;
            while ((at = Object.getPrototypeOf(at))) if (Object.getOwnPropertyDescriptor(at, name)) found.push(name);
        }
        return found }"""
    assert run_code(deeper).output == []


FOREIGN = ["jsr:@std/assert", "npm:left-pad", "https://example.com/x.ts", "http://127.0.0.1/x.ts", "blob:nothing"]
FILES = ["file:///etc/hostname", "/etc/hostname", "../../../etc/hostname", "file:///proc/self/environ"]
NODE = ["child_process", "worker_threads", "fs", "fs/promises", "process", "vm", "http", "net", "dgram", "cluster"]
NODE += ["inspector", "sqlite", "os", "dns", "module", "repl", "v8", "wasi", "tls", "http2"]


def test_what_can_be_imported_opens_nothing(run_code: RunCode) -> None:
    """By a literal and by a variable, directly and out of a data: URL; what `node:` modules export is tried on the
    host."""
    uses = """async (m: any) => {
        const done: string[] = [];
        let d: any; try { d = m.default ?? m } catch { return done }  // it did not come up
        const tries: Record<string, () => unknown> = {
            readFileSync: () => d.readFileSync("/etc/passwd", "utf8"), readdirSync: () => d.readdirSync("/"),
            readFile: () => d.readFile("/etc/passwd"), writeSync: () => d.writeSync(1, "forged"),
            execSync: () => d.execSync("id"), spawnSync: () => { const r = d.spawnSync("id"); if (r.error) throw r.error },
            fork: () => d.fork("/x").pid, Worker: () => new d.Worker("data:text/javascript,", {eval: true}).threadId,
            open: () => d.open(9229), DatabaseSync: () => new d.DatabaseSync("/etc/passwd"), hostname: () => d.hostname(),
            env: () => d.env.PATH.length, exit: () => d.exit(0), createRequire: () => d.createRequire("file:///")("/etc/passwd"),
            createSocket: () => new Promise((ok, no) => {
                const s = d.createSocket("udp4"); s.on("listening", ok); s.on("error", no); s.bind(0); setTimeout(no, 200) }),
            connect: () => new Promise((ok, no) => {
                const s = d.connect(9, "127.0.0.1"); s.on("connect", ok); s.on("error", no); setTimeout(no, 200) }),
        };
        for (const [name, use] of Object.entries(tries))
            try { if (d[name] !== undefined) { await use(); done.push(name) } } catch { /* closed */ }
        return done }"""
    every = [*FOREIGN, *FILES, *(f"node:{name}" for name in NODE)]
    literal = ",".join(f'"{at}": () => import("{at}")' for at in every)
    source = f"""const use = {uses}, literal: any = {{{literal}}};
        export default async (at: string) => {{
            const opened: string[] = [], data = "data:text/javascript,export * from %22" + at + "%22";
            const ways = [literal[at], () => import(at), () => import(data)];
            if (!at.startsWith("node:")) for (const type of ["text", "json", "bytes"])
                ways.push(() => import(at, {{with: {{type}}}} as any).then((m: any) => ({{default: {{read: m.default}}}})));
            for (const way of ways) {{
                let m: any; try {{ m = await way() }} catch {{ continue }}
                if (!at.startsWith("node:")) opened.push(at);
                for (const name of await use(m)) {{ opened.push(name); console.log(name) }}
            }}
            return opened }}"""
    for at in every:
        outcome = run_code(source, at, timeout=30, memory_mb=512)
        # What a module only reports later, as an unhandled rejection, ends the call as its error.
        assert (outcome.reason or outcome.output, outcome.logs) in (([], []), ("user_error", [])), (at, outcome.error)


@pytest.mark.parametrize("load", [*FOREIGN[:3], *FILES[:2], "node:fs", "node:child_process"])
def test_a_static_import_opens_nothing(run_code: RunCode, load: str) -> None:
    """Finding 1: the static graph of a main module is read whatever the permissions; ours is none."""
    uses = 'd.readFileSync?.("/etc/passwd", "utf8") ?? d.execSync?.("id").toString() ?? d'
    for source in (
        f'import d from "{load}"; export default () => {uses}',
        f'export * as d from "{load}"; export default 1',
    ):
        try:
            outcome = run_code(source, timeout=4)
        except LoadFailed:
            continue
        assert outcome.reason == "user_error", (source, outcome.output)


# ── What is left behind ─────────────────────────────────────────────────────────────────────────────────────────────


def test_directories_of_killed_processes_are_removed_and_used_ones_kept(pool: Pool, run_code: RunCode) -> None:
    assert run_code("export default () => 1").output == 1
    mine = next(iter(pool._idle)).scratch
    child = os.fork()
    if child == 0:
        try:
            made = scratch.make()
            (made / "file").write_text("left behind")
            os.write(1, b"")
            Path(mine.parent.parent / f"made-by-{os.getpid()}").write_text(str(made))
            time.sleep(60)
        finally:
            os._exit(0)
    note = mine.parent.parent / f"made-by-{child}"
    try:
        wait_for("it has made its directory", lambda: note.exists() and note.read_text())
        theirs = Path(note.read_text())
        assert theirs.parent != mine.parent, "a fork has its own"
        scratch.remove_leftovers()
        assert theirs.exists(), "its process lives"
        os.kill(child, 9)
        os.waitpid(child, 0)
        assert scratch.remove_leftovers() >= 1
        assert not theirs.parent.exists()
        assert mine.exists()
        assert run_code("export default () => 2").output == 2
    finally:
        note.unlink(missing_ok=True)


def test_similar_directory_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "in-use").touch()
    (tmp_path / f"{scratch.PREFIX}link").symlink_to(precious)
    (tmp_path / f"{scratch.PREFIX}nolock").mkdir()
    (tmp_path / f"{scratch.PREFIX}file").touch()
    assert scratch.remove_leftovers() == 0
    assert (precious / "in-use").exists()
    assert (tmp_path / f"{scratch.PREFIX}nolock").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
def test_no_two_living_processes_have_an_uid_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where there are hardly more uids than processes, as for hashes that collide; and they come free
    again."""
    two = launch._UIDS[:2]
    monkeypatch.setattr(launch, "_UIDS", two)
    for _ in range(2):
        pair = [process.Process(128) for _ in range(2)]
        try:
            assert sorted(psutil.Process(each.popen.pid).uids().real for each in pair) == list(two)
        finally:
            for each in pair:
                each.close()
