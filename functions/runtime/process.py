"""One Deno process behind walls, spoken to in frames; one call at a time.

`Process.start` spawns it, `load` gives it one version's source, `call` runs the tenant's function and answers what
the code asks of its `Host` meanwhile. A process that misbehaves, times out or crashes is killed with its whole group
and never used again. Between calls it is stopped (SIGSTOP), so nothing that a call left behind can run. Design
section 8.

Inputs, outputs, questions and answers travel as JSON text that is not read here and written again: it costs nothing,
and a number that Python would spell differently stays as it is. Text that the code chose (its log, its errors) is
cleaned of what PostgreSQL cannot keep, so that no run can end without being written down.
"""

import base64
import contextlib
import errno
import json
import math
import os
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import orjson

from functions.runtime import imports, jail, scratch
from functions.runtime.asides import Asides

RUNNER = Path(__file__).with_name("runner.ts")
START_SECONDS = 10.0
MAX_FRAME_BYTES = 24 * 1024 * 1024
"""What a process may say in one frame before it counts as flooding; a plan's largest output is far below."""

Reason = Literal["user_error", "timeout", "memory", "crashed", "protocol", "output_too_large", "cancelled", "platform"]


class RuntimeFailed(RuntimeError):
    """Base of what can go wrong with a process. Never raised itself."""


class StartFailed(RuntimeFailed):
    """Deno did not start, on this machine or for this memory limit. A platform fault."""


class LoadFailed(RuntimeFailed):
    """The module could not be loaded: its syntax, its imports or its top level. The tenant's fault; the text tells."""


class ProcessGone(RuntimeFailed):
    """The process was dead before it took the call; another one may be asked."""


class Host(Protocol):
    """What a call may do to the outside, decided as the caller of that call."""

    def answer(self, operation: str, arguments: bytes, *, seconds: float) -> bytes | Callable[[], bytes]:
        """The answer to one question of the code (`rows.list`, …, `fetch`), both as JSON text; the call has `seconds`
        left. One that comes from far away is what returns it, to be called in a thread of its own. `arguments` is what
        the code said and may be anything. Both raise HostError for a refusal."""

    def interrupt(self) -> None:
        """The call is over while answers are still made for it in other threads: give up. May come more than once."""


class HostError(Exception):
    """A refusal that the code sees as an exception with `name`, `message`, `code` and `fields`."""

    def __init__(
        self, message: str, *, code: str = "error", name: str = "Error", fields: list[Any] | None = None
    ) -> None:
        super().__init__(message)
        self.value = {"name": name, "message": message, "code": code, "fields": fields}


_IMPORTS_REFUSED: Final = re.compile(
    "npm specifiers were requested|Requires import access|not a dependency|cannot-be-a-base|Unsupported scheme"
)
"""Deno's words where a module asks for another one that is not there."""
_BLOCKED: Final = re.compile('Blocked by null entry for ""([^"]{1,100})""')
"""Its words where the import map refuses one of Node's."""


_HABITS: Final = (
    (
        re.compile(r"\b(require|module|exports|__dirname|__filename) is not defined"),
        "This is CommonJS, a function is an ES module: import for require, export default (input, ctx) => output.",
    ),
    (
        re.compile(r"\bDeno\.serve is not a function"),
        "A function listens to nothing, it is called: export default async (input, ctx) => output.",
    ),
)
"""What is written for other platforms, by how it fails here."""
_PLACE: Final = re.compile(r"\n +at [^\n]*function\.ts:\d+:\d+\)?")


def _placed(error: Mapping[str, Any]) -> str:
    """The message of an error, with its name and its line where the message does not have them."""
    message: str = error["message"]
    if "function.ts:" in message:
        return message
    name = "" if error["name"] == "Error" else f"{error['name']}: "
    place = _PLACE.search(error["stack"] or "")
    return name + message + (place[0] if place else "")


def _advised(message: str) -> str:
    """What Deno says of a module that does not load, led by what to do where its words are for somebody else."""
    if blocked := _BLOCKED.search(message):
        instead = imports.instead_of(blocked[1])
        advice = f": use {instead}" if instead else ", which has no files, processes and sockets"
        return message.replace(blocked[0], f'"{blocked[1]}" is not among the modules of Node that are here{advice}', 1)
    if _IMPORTS_REFUSED.search(message):
        return (
            "A function is one module, and what it imports has to be in it: bundle it"
            f" (esbuild --bundle --format=esm). {message}"
        )
    for habit, advice in _HABITS:
        if habit.search(message):
            return f"{advice} {message}"
    return message


@dataclass(frozen=True, slots=True)
class LogLine:
    at: float
    """Unix seconds."""
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """One invocation. `input` is JSON text; `timeout` in seconds, `max_output` in bytes of JSON."""

    input: str
    run_id: str
    caller: Mapping[str, Any]
    secrets: Mapping[str, str]
    timeout: float
    max_output: int


@dataclass(slots=True)
class Outcome:
    """How a call ended. `output` is JSON text where `reason` is None, else None; `duration` in seconds."""

    duration: float
    output: str | None = None
    reason: Reason | None = None
    error: dict[str, Any] | None = None
    logs: list[LogLine] = field(default_factory=list)
    walls: tuple[str, ...] = ()
    """What stood between the code and the machine (`functions.runtime.jail`)."""


_FRAME: Final = re.compile(rb'\{"t":"(log|call|done|failed)","tag":"([0-9a-f]{32})",(.*)\}', re.DOTALL)
"""What the runner says during a call, letter by letter as it writes it; group 3 is the rest of the object."""
_QUESTION: Final = re.compile(rb'"n":(\d{1,9}),"op":"([a-z.]{1,20})","args":(.*)', re.DOTALL)
_OUTPUT: Final = b'"output":'
_LEVELS: Final = frozenset({"debug", "info", "warning", "error"})
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
MAX_LOG_LINES: Final = 300
"""The runner stops at 256; one that goes on is not the runner any more."""


def _clean(value: object, longest: int) -> str:
    """Text that the code chose, without NUL characters and halves of surrogate pairs."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value if isinstance(value, str) else str(value))[:longest]


def _error_of(value: object) -> dict[str, Any]:
    """The error of the code's own making, whatever it made of it."""
    said = value if isinstance(value, dict) else {}
    stack = said.get("stack")
    return {
        "name": _clean(said.get("name", "Error"), 200),
        "message": _clean(said.get("message", ""), 2000),
        "stack": _clean(stack, 4000) if isinstance(stack, str) else None,
    }


def deno() -> str:
    """The `deno` binary beside this interpreter. Raises StartFailed where the wheel is not installed."""
    beside = Path(sys.executable).parent / "deno"
    found = str(beside) if beside.exists() else shutil.which("deno")
    if not found:
        raise StartFailed("The package deno is not installed.")
    return found


FLAGS = (
    "run",
    "--quiet",
    "--no-prompt",
    "--no-remote",
    "--no-npm",
    "--no-config",
    "--no-lock",
    "--cached-only",
    "--node-modules-dir=none",
    "--deny-import",
    "--deny-read",
    "--deny-env",
    "--deny-run",
    "--deny-ffi",
    "--deny-sys",
    "--deny-write",
    "--deny-net",
)


_UIDS: Final = range(1_900_000_000, 2_000_000_000)
"""Far above what accounts and containers' ranges of them use."""


class _Uid:
    """An unprivileged uid for one process of ours to give away, that no account has: nobody else's until `close`.

    Held by a name among the kernel's Unix sockets, which goes with us however we die. Platforms in network namespaces
    of their own (containers) do not see each other's names: between those only chance keeps two apart, one in 10^8.
    """

    def __init__(self) -> None:
        """Raises OSError."""
        self._name: socket.socket | None = None
        while True:
            self.number = random.choice(_UIDS)  # noqa: S311 - no secret
            if sys.platform != "linux" or self._is_claimed():
                return

    def _is_claimed(self) -> bool:
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind(f"\0platform-functions-uid-{self.number}")
        except OSError as error:
            name.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        self._name = name
        return True

    def close(self) -> None:
        if self._name is not None:
            self._name.close()


def _claim_uid() -> _Uid | None:
    """None where we are not root, and cannot become anybody else."""
    return _Uid() if os.geteuid() == 0 else None


def walls_of_this_host() -> list[str]:
    """Which walls a process would stand behind here (`jail.WALLS` are all), by putting up those of one that does
    nothing. Some 30 ms. Raises OSError, subprocess.SubprocessError."""
    directory = scratch.make()
    claimed = _claim_uid()
    uid = None if claimed is None else claimed.number
    report_in, report_out = os.pipe()
    try:
        with os.fdopen(report_in, "rb") as report:
            try:
                if uid is not None:
                    os.chown(directory, uid, uid)
                spec: dict[str, Any] = {
                    "report": report_out,
                    "uid": uid,
                    "scratch": str(directory),
                    "parent": os.getpid(),
                    "limits": {},
                }
                subprocess.run(  # noqa: S603 - our own program
                    [sys.executable, "-I", "-S", jail.__file__, json.dumps(spec), "--"],
                    pass_fds=[report_out], env={}, check=True, timeout=10, capture_output=True,
                )  # fmt: skip
            finally:
                os.close(report_out)
            return list(json.loads(report.readline() or b"[]"))
    finally:
        if claimed is not None:
            claimed.close()
        shutil.rmtree(directory, ignore_errors=True)


class Process:
    """See the module. Not thread-safe: its holder uses it alone; only `kill`, `hurry` and `rss_bytes` may come
    from others."""

    def __init__(
        self,
        memory_mb: int,
        owner: str,
        required_walls: frozenset[str] = frozenset(),
        ahead: Sequence[str] = (),
    ) -> None:
        """Start it, for code that needs the modules `ahead` (`imports.ahead`). Raises StartFailed where the host does
        not give one of the required walls, OSError."""
        self.memory_mb = memory_mb
        self.owner = owner
        self._ahead = ahead
        self.calls = 0
        self.heat = 0.0
        """How often it was called of late, as of `heated_at`: its pool's to keep, for choosing who leaves."""
        self.heated_at = 0.0
        self.started_at = time.monotonic()
        self.is_paused = False
        self.killed_for: Reason | None = None
        self.walls: list[str] = []
        self.baseline_threads = 0
        self._deadline = math.inf
        self._answering: Host | None = None
        self._interrupting: threading.Thread | None = None
        self._asides: Asides | None = None
        self._buffer = bytearray()
        self._error_tail = b""
        self._uid: _Uid | None = None
        self.scratch = scratch.make()
        try:
            self._uid = _claim_uid()
            self._start()
            if missing := required_walls - set(self.walls):
                raise StartFailed(f"This host does not give the required walls: {', '.join(sorted(missing))}.")
        except BaseException:
            self.close()
            raise

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _start(self) -> None:
        runner = self.scratch / "runner.ts"
        runner.write_bytes(RUNNER.read_bytes())
        uid = None if self._uid is None else self._uid.number
        if uid is not None:
            os.chown(self.scratch, uid, uid)
            runner.chmod(0o444)
        report_in, report_out = os.pipe()
        with os.fdopen(report_in, "rb") as report:
            try:
                self.popen = self._spawn(runner, uid, report_out)
            finally:
                os.close(report_out)
            self.walls = json.loads(report.readline() or b"[]")
        pipes = [pipe for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr) if pipe]
        self._in, self._out, self._errors = (pipe.fileno() for pipe in pipes)
        self._woken, self._wake = os.pipe()
        for descriptor in (self._in, self._out, self._errors, self._woken, self._wake):
            os.set_blocking(descriptor, False)
        self._poll = select.poll()
        for descriptor in (self._out, self._errors, self._woken):
            self._poll.register(descriptor, select.POLLIN)

    def _spawn(self, runner: Path, uid: int | None, report: int) -> "subprocess.Popen[bytes]":
        spec = {
            "report": report,
            "uid": uid,
            "scratch": str(self.scratch),
            "parent": os.getpid(),
            "limits": {
                "RLIMIT_DATA": max(700, self.memory_mb * 4) * 1024 * 1024,
                "RLIMIT_CPU": 3600,
                "RLIMIT_FSIZE": 16 * 1024 * 1024,
                "RLIMIT_NOFILE": 64,
                "RLIMIT_CORE": 0,
            },
        }
        command = [
            *(sys.executable, "-I", "-S", jail.__file__, json.dumps(spec), "--", deno()),
            *FLAGS,
            f"--import-map={imports.import_map(self._ahead)}",
            f"--v8-flags=--max-old-space-size={self.memory_mb}",
            str(runner),
        ]
        return subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[report],
            start_new_session=True,
            cwd="/",
            env={},
        )

    def wait_until_ready(self) -> None:
        """Block until the runner reads frames. Raises StartFailed with what Deno printed."""
        try:
            frame = self._read(time.monotonic() + START_SECONDS)
        except ProcessGone as error:
            raise StartFailed(f"Deno did not start: {self._last_words() or error}") from error
        if frame.get("t") != "ready":
            raise StartFailed("Deno did not start: the runner said something else")
        self.baseline_threads = self._threads()

    def load(self, source: bytes, *, seconds: float) -> None:
        """Load one version's module, whose top level may take so long. Raises LoadFailed with the code's own error;
        discard the process then."""
        deadline = time.monotonic() + seconds
        try:
            load = {
                "source": base64.b64encode(source).decode(),
                "ahead": self._ahead,
                "required": imports.required(source),
            }
            self._write({"t": "load", **load}, deadline)
            frame = self._read(deadline)
        except ProcessGone as error:
            reason = (
                f"its top level ran longer than {seconds:g} s" if self.killed_for == "timeout" else "the process ended"
            )
            raise LoadFailed(f"The module could not be loaded: {reason}.") from error
        if frame.get("t") != "loaded":
            raise LoadFailed(_advised(_placed(_error_of(frame.get("error"))) or "unknown"))

    def pause(self) -> None:
        """Stop it until its next call."""
        self.is_paused = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._signal(signal.SIGCONT)

    def is_alive(self) -> bool:
        return self.popen.poll() is None

    def grew_threads(self) -> bool:
        """Whether the last call left threads behind (a worker that outlived it): then it is retired."""
        return self._threads() > self.baseline_threads + 2

    def rss_bytes(self) -> int:
        """Resident memory now, 0 if it is gone."""
        try:
            with open(f"/proc/{self.popen.pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0

    def kill(self, reason: Reason) -> None:
        """End the whole group at once. Idempotent; `reason` of the first call counts."""
        self.killed_for = self.killed_for or reason
        self._signal(signal.SIGKILL)

    def hurry(self) -> None:
        """Interrupt a host that still answers a question of a call that is over: past its deadline, or killed. The pool
        looks every 20 ms, because the thread of the call itself is in there."""
        host = self._answering
        if host is None or not (self.killed_for or time.monotonic() >= self._deadline):
            return
        self.kill("timeout")
        if self._interrupting is None or not self._interrupting.is_alive():
            # In a thread of its own: it may have to reach PostgreSQL, and memory is watched from here.
            self._interrupting = threading.Thread(target=host.interrupt, name="function-interrupt", daemon=True)
            self._interrupting.start()

    def close(self) -> None:
        """Kill, reap, and remove the scratch directory."""
        if hasattr(self, "popen"):
            self._signal(signal.SIGKILL)
            self.popen.wait()
            for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
                if pipe:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if hasattr(self, "_wake"):
            os.close(self._woken)
            os.close(self._wake)
            del self._wake
        shutil.rmtree(self.scratch, ignore_errors=True)
        if self._uid is not None:
            self._uid.close()  # nothing runs by it any more, and nothing lies about

    def _signal(self, number: signal.Signals) -> None:
        if self.popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, number)

    def _threads(self) -> int:
        try:
            return len(os.listdir(f"/proc/{self.popen.pid}/task"))
        except OSError:
            return 0

    def _last_words(self) -> str:
        """The end of what Deno wrote to stderr, for the platform's log."""
        self._discard_errors()
        return self._error_tail.decode(errors="replace").strip()

    # ── the channel ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _write(self, frame: Mapping[str, Any], deadline: float) -> None:
        self._write_bytes(orjson.dumps(frame), deadline)

    def _write_bytes(self, body: bytes, deadline: float) -> None:
        left = memoryview(struct.pack("<I", len(body)) + body)
        while left:
            try:
                left = left[os.write(self._in, left) :]
            except BlockingIOError:
                self._await_room(deadline)
            except OSError as error:
                raise ProcessGone("it closed its input") from error

    def _await_room(self, deadline: float) -> None:
        """Until it reads on. It may itself be waiting for us, in a burst of questions or of log lines: so what it says
        meanwhile is taken in, as much of it as may be in one frame."""
        listens = len(self._buffer) <= MAX_FRAME_BYTES
        self._poll.modify(self._out, select.POLLIN if listens else 0)
        self._poll.modify(self._woken, 0)
        self._poll.register(self._in, select.POLLOUT)
        try:
            if self._out in self._ready(deadline, {self._in, self._out}):
                self._take_in()
        finally:
            self._poll.unregister(self._in)
            self._poll.modify(self._woken, select.POLLIN)
            self._poll.modify(self._out, select.POLLIN)

    def _await_aside(self, deadline: float) -> None:
        """Until an answer was made in another thread. What the code says meanwhile waits."""
        self._poll.modify(self._out, 0)
        try:
            if self._out in self._ready(deadline, {self._out, self._woken}):
                raise ProcessGone("it ended")
        finally:
            self._poll.modify(self._out, select.POLLIN)

    def _fill(self, deadline: float) -> None:
        if self._woken in self._ready(deadline, {self._out, self._woken}):
            self._hand_in(deadline)
        else:
            self._take_in()

    def _hand_in(self, deadline: float) -> None:
        """Tell the code what was answered in other threads."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)
        for reply in self._asides.take() if self._asides else ():
            self._write_bytes(reply, deadline)

    def _take_in(self) -> None:
        more = os.read(self._out, 1 << 18)
        if not more:
            raise ProcessGone("it ended")
        self._buffer += more

    def _ready(self, deadline: float, wanted: set[int]) -> set[int]:
        """Wait for one of the descriptors that are `wanted`. Raises ProcessGone at the deadline."""
        while True:
            ready = {found for found, _ in self._poll.poll(max(0.0, (deadline - time.monotonic()) * 1000))}
            if self._errors in ready:
                self._discard_errors()
            if ready & wanted:
                return ready
            if time.monotonic() >= deadline:
                self.kill("timeout")
                raise ProcessGone("the deadline passed")

    def _discard_errors(self) -> None:
        """Keep stderr from filling up, and the end of it: V8 says there that its heap is full."""
        with contextlib.suppress(OSError):
            for _ in range(16):  # one that never stops writing must not keep us from looking at the clock
                if not (more := os.read(self._errors, 1 << 16)):
                    with contextlib.suppress(KeyError):
                        self._poll.unregister(self._errors)  # it is closed, and would be ready for ever
                    break
                self._error_tail = (self._error_tail + more)[-4096:]

    def _read_bytes(self, deadline: float) -> bytes:
        """The next frame. Raises ProcessGone at the end, and at the deadline or for a flood, when it is killed."""
        while len(self._buffer) < 4:
            self._fill(deadline)
        (length,) = struct.unpack_from("<I", self._buffer)
        if length > MAX_FRAME_BYTES:
            raise self._broken()
        while len(self._buffer) < 4 + length:
            self._fill(deadline)
        body = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        return body

    def _read(self, deadline: float) -> dict[str, Any]:
        """The next frame outside of a call. Raises ProcessGone as above, and for what is no frame."""
        try:
            frame = json.loads(self._read_bytes(deadline))
        except (ValueError, RecursionError) as error:
            raise self._broken() from error
        if not isinstance(frame, dict):
            raise self._broken()
        return frame

    def _broken(self) -> ProcessGone:
        self.kill("protocol")
        return ProcessGone("it broke the protocol")

    # ── one call ────────────────────────────────────────────────────────────────────────────────────────────────────
    def call(self, call: Call, host: Host) -> Outcome:
        """Run the loaded function once. Raises ProcessGone only if the process was dead before it took the call."""
        tag = os.urandom(16).hex().encode()
        started = time.monotonic()
        deadline = started + call.timeout
        facts = {
            "run_id": call.run_id,
            "caller": dict(call.caller),
            "secrets": dict(call.secrets),
            "max_output": call.max_output,
        }
        frame = b'{"t":"run","tag":"%b","input":%b,%b' % (tag, call.input.encode(), orjson.dumps(facts)[1:])
        if not self.is_alive():
            raise ProcessGone("it died while idle")
        self.calls += 1
        self._deadline = deadline
        logs: list[LogLine] = []
        try:
            self._write_bytes(frame, deadline)
            while True:
                kind, rest = self._said(tag, deadline)
                match kind:
                    case b"log":
                        logs.append(self._line(rest))
                        if len(logs) > MAX_LOG_LINES:
                            raise self._broken()
                    case b"call":
                        self._reply(tag, rest, host, deadline)
                    case b"done":
                        ended = self._done(rest, call.max_output, time.monotonic() - started, logs)
                        break
                    case _:
                        said = self._object(rest)
                        too_large = said.get("reason") == "output_too_large"
                        reason: Reason = "output_too_large" if too_large else "user_error"
                        error = _error_of(said.get("error"))
                        ended = Outcome(time.monotonic() - started, reason=reason, error=error, logs=logs)
                        break
            self._finish_asides(host, deadline)
            return ended
        except ProcessGone as gone:
            self._signal(signal.SIGKILL)
            if self._asides is not None and self._asides.is_busy:
                host.interrupt()
            reason = self.killed_for or ("memory" if self._ran_out_of_memory() else "crashed")
            return Outcome(
                time.monotonic() - started,
                reason=reason,
                error={"name": _NAMES[reason], "message": _SENTENCES[reason] or str(gone), "stack": None},
                logs=logs,
            )
        finally:
            if self._asides is not None:
                self._asides.close()
                self._asides = None

    def _finish_asides(self, host: Host, deadline: float) -> None:
        """What the code asked for and did not wait for is done before its call is over, as far as its time allows;
        nobody hears the answers."""
        if self._asides is None:
            return
        self._answering = host
        try:
            self._asides.wait(deadline)
        finally:
            self._answering = None
        if self._asides.is_busy:
            self.kill("timeout")
            host.interrupt()

    def _said(self, tag: bytes, deadline: float) -> tuple[bytes, bytes]:
        """The kind of the next frame of this call, and the rest of it, unread."""
        found = _FRAME.fullmatch(self._read_bytes(deadline))
        if found is None or found[2] != tag:
            raise self._broken()
        return found[1], found[3]

    def _object(self, rest: bytes) -> dict[str, Any]:
        try:
            said = json.loads(b"{%b}" % rest)
        except (ValueError, RecursionError) as error:
            raise self._broken() from error
        return dict(said)

    def _line(self, rest: bytes) -> LogLine:
        said = self._object(rest)
        level = str(said.get("level"))
        return LogLine(time.time(), level if level in _LEVELS else "info", _clean(said.get("text"), 4096))

    def _done(self, rest: bytes, longest: int, duration: float, logs: list[LogLine]) -> Outcome:
        """The code's output, held to be of at most `longest` bytes and JSON that everybody can read: `JSON.stringify`
        writes halves of surrogate pairs and, by `JSON.rawJSON`, numbers out of range."""
        if not rest.startswith(_OUTPUT):
            raise self._broken()
        output = rest[len(_OUTPUT) :]
        if len(output) > longest:  # the runner says so itself of most; it is not the runner's to decide
            too_large = {
                "name": "OutputTooLarge",
                "message": f"the output has more than {longest} bytes",
                "stack": None,
            }
            return Outcome(duration, reason="output_too_large", error=too_large, logs=logs)
        try:
            orjson.loads(output)
        except orjson.JSONDecodeError as error:
            why = _clean(str(error).partition(": line ")[0], 200)
            wrong = {"name": "Error", "message": f"the output is not JSON: {why}", "stack": None}
            return Outcome(duration, reason="user_error", error=wrong, logs=logs)
        return Outcome(duration, output=output.decode(), logs=logs)

    def _reply(self, tag: bytes, rest: bytes, host: Host, deadline: float) -> None:
        """Answer a question of the code, or let it be answered in another thread."""
        found = _QUESTION.fullmatch(rest)
        if found is None:
            raise self._broken()
        number, operation, arguments = found.groups()
        left = max(0.0, deadline - time.monotonic())
        far: Callable[[], bytes] | None = None
        self._answering = host
        try:
            answer = host.answer(operation.decode(), arguments, seconds=left)
            if callable(answer):
                far, reply = answer, b""
            else:
                reply = _told(tag, number, answer)
        except HostError as error:
            reply = _refused(tag, number, error)
        finally:
            self._answering = None
        if time.monotonic() >= deadline:  # the answer took longer than the call had: it goes on no further
            self.kill("timeout")
            raise ProcessGone("the deadline passed")
        if far is None:
            self._write_bytes(reply, deadline)
        else:
            self._begin_aside(partial(_answered, tag, number, far), deadline)

    def _begin_aside(self, answer: Callable[[], bytes], deadline: float) -> None:
        self._asides = self._asides or Asides(self._wake)
        self._hand_in(deadline)
        while self._asides.is_full:
            self._await_aside(deadline)
            self._hand_in(deadline)
        self._asides.begin(answer)

    def _ran_out_of_memory(self) -> bool:
        """V8 says so and aborts; Deno's own allocations abort without a word. Nothing else that it does aborts."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(1.0)
        aborted = self.popen.returncode in (-signal.SIGABRT, -signal.SIGTRAP, -signal.SIGILL)
        return aborted or "out of memory" in self._last_words()


def _answered(tag: bytes, number: bytes, answer: Callable[[], bytes]) -> bytes:
    try:
        return _told(tag, number, answer())
    except HostError as error:
        return _refused(tag, number, error)


def _told(tag: bytes, number: bytes, value: bytes) -> bytes:
    return b'{"t":"reply","tag":"%b","n":%b,"ok":true,"value":%b}' % (tag, number, value)


def _refused(tag: bytes, number: bytes, error: HostError) -> bytes:
    return b'{"t":"reply","tag":"%b","n":%b,"ok":false,"value":%b}' % (tag, number, orjson.dumps(error.value))


_NAMES: dict[Reason, str] = {
    "timeout": "FunctionTimeout",
    "memory": "OutOfMemory",
    "crashed": "ProcessCrashed",
    "protocol": "ProtocolViolation",
    "cancelled": "Cancelled",
    "user_error": "Error",
    "platform": "Error",
    "output_too_large": "OutputTooLarge",
}
_SENTENCES: dict[Reason, str] = {
    "timeout": "the function ran longer than its timeout",
    "memory": "the function used more memory than its limit",
    "crashed": "the process of the function ended before the function did",
    "protocol": "the function wrote into the channel of the platform",
    "cancelled": "the run was cancelled",
    "user_error": "",
    "platform": "",
    "output_too_large": "",
}
