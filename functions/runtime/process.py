"""One sandboxed Deno process, which exchanges frames with the platform (`channel`) and runs one call at a time. A
process that misbehaves, times out or crashes is killed with its process group and never used again. Between calls it is
stopped (SIGSTOP), so nothing that a call left behind can run. Inputs, outputs, requests and replies are passed on as
JSON text without parsing: that is fast, and numbers stay as they were written."""

import base64
import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import orjson

from functions.runtime import imports, launch, messages, scratch
from functions.runtime.async_replies import AsyncReplies
from functions.runtime.calls import Call, Host, HostError, LogLine, Outcome
from functions.runtime.calls_ahead import CallsAhead, RunFrame
from functions.runtime.channel import Channel
from functions.runtime.errors import LoadFailed, ProcessGone, Reason, StartFailed
from platform_site.concurrency import loop_requests

START_SECONDS: Final = 10.0

_FRAME: Final = re.compile(rb'\{"t":"(log|call|done|failed)","tag":"([0-9a-f]{32})",(.*)\}', re.DOTALL)
"""A frame of the runner during a call, exactly as it writes it; group 3 is the rest of the object."""
_HOST_CALL: Final = re.compile(rb'"n":(\d{1,9}),"op":"([a-z._]{1,20})","args":(.*)', re.DOTALL)
_OUTPUT: Final = b'"output":'
_LEVELS: Final = frozenset({"debug", "info", "warning", "error"})
MAX_LOG_LINES: Final = 300  # the runner stops at 256


class Process:
    """One thread uses it at a time; only `kill`, `interrupt_late_host` and `rss_bytes` may be called from others."""

    def __init__(
        self,
        memory_mb: int,
        required_sandbox_layers: frozenset[str] = frozenset(),
        preloaded: Sequence[str] = (),
    ) -> None:
        """Raises StartFailed if the host does not support one of the required sandbox layers, OSError."""
        self.memory_mb, self._preloaded = memory_mb, preloaded
        self.calls = 0
        self.recent_uses = 0.0
        """Decayed number of calls as of `uses_counted_at`."""
        self.uses_counted_at = 0.0
        self.started_at = time.monotonic()
        self.is_paused = False
        self.killed_for: Reason | None = None
        self.baseline_threads = 0
        self._deadline = math.inf
        self._answering: Host | None = None
        self._interrupting: threading.Thread | None = None
        self._async_replies: AsyncReplies | None = None
        self.scratch = scratch.make()
        try:
            self._uid = launch.Uid()
            self.popen, report = launch.spawn(self.scratch, self._uid.number, memory_mb, preloaded)
            with report:
                self.sandbox_layers: list[str] = json.loads(report.readline() or b"[]")
            self._channel = Channel(self.popen, self.kill)
            self.ahead = CallsAhead(self._channel.write_ahead)
            if missing := required_sandbox_layers - set(self.sandbox_layers):
                raise StartFailed(
                    f"This host does not support the required sandbox layers: {', '.join(sorted(missing))}."
                )
        except BaseException:
            self.close()
            raise

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def wait_until_ready(self) -> None:
        """Block until the runner reads frames. Raises StartFailed with what Deno printed."""
        try:
            frame = self._channel.read(time.monotonic() + START_SECONDS)
        except ProcessGone as error:
            raise StartFailed(f"Deno did not start: {self._channel.stderr_tail() or error}") from error
        if frame.get("t") != "ready":
            raise StartFailed("Deno did not start: the runner sent an unexpected frame")
        self.baseline_threads = self._threads()

    def load(self, source: bytes, *, seconds: float) -> None:
        """Load a module, whose top level may take `seconds`. Raises LoadFailed with the code's own error."""
        deadline = time.monotonic() + seconds
        try:
            load = {
                "source": base64.b64encode(source).decode(),
                "ahead": self._preloaded,  # not renamed: during an upgrade, a running version uses a new runner
                "required": imports.required(source),
            }
            self._channel.write_bytes(orjson.dumps({"t": "load", **load}), deadline)
            frame = self._channel.read(deadline)
        except ProcessGone as error:
            reason = (
                f"its top level ran longer than {seconds:g} s" if self.killed_for == "timeout" else "the process ended"
            )
            raise LoadFailed(f"The module could not be loaded: {reason}.") from error
        if frame.get("t") != "loaded":
            raise LoadFailed(
                messages.with_advice(messages.with_location(messages.error_of(frame.get("error"))) or "unknown")
            )

    def pause(self) -> None:
        self.is_paused = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._signal(signal.SIGCONT)

    def is_alive(self) -> bool:
        return self.popen.poll() is None

    def grew_threads(self) -> bool:
        """Whether the last call left threads behind (such as a web worker): then the process is retired."""
        return self._threads() > self.baseline_threads + 2

    def rss_bytes(self) -> int:
        try:
            with open(f"/proc/{self.popen.pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0

    def kill(self, reason: Reason) -> None:
        """Idempotent; `reason` of the first call counts."""
        self.killed_for = self.killed_for or reason
        self._signal(signal.SIGKILL)

    def interrupt_late_host(self) -> None:
        """Interrupt a host that still answers a call that is past its deadline or killed. Called by the pool's watcher,
        because the thread of the call itself is in the host."""
        host = self._answering
        if host is None or not (self.killed_for or time.monotonic() >= self._deadline):
            return
        self.kill("timeout")
        if self._interrupting is None or not self._interrupting.is_alive():
            # In a separate thread: it may wait for PostgreSQL, and this thread watches the memory.
            self._interrupting = threading.Thread(target=host.interrupt, name="function-interrupt", daemon=True)
            self._interrupting.start()

    def close(self) -> None:
        if hasattr(self, "popen"):
            self._signal(signal.SIGKILL)
            self.popen.wait()
            for pipe in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
                if pipe:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if hasattr(self, "_channel"):
            self._channel.close()
            del self._channel
        shutil.rmtree(self.scratch, ignore_errors=True)
        if hasattr(self, "_uid"):
            self._uid.close()  # no process and no file uses it any more

    def _signal(self, number: signal.Signals) -> None:
        if self.popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, number)

    def _threads(self) -> int:
        try:
            return len(os.listdir(f"/proc/{self.popen.pid}/task"))
        except OSError:
            return 0

    # ── one call ────────────────────────────────────────────────────────────────────────────────────────────────────
    def call(self, call: Call, host: Host, sent_ahead: RunFrame | None = None) -> Outcome:
        """`sent_ahead`: the frame if it was sent already. Raises ProcessGone if the process was dead before it took the
        call."""
        started = time.monotonic()
        deadline = started + call.timeout
        frame = sent_ahead or RunFrame(call)
        tag = frame.tag
        if sent_ahead is None and not self.is_alive():
            raise ProcessGone("it died while idle")
        self.calls += 1
        self._deadline = deadline
        logs: list[LogLine] = []
        try:
            if sent_ahead is None:
                self._channel.write_bytes(frame.body, deadline)
            while True:
                kind, rest = self._next_frame(tag, deadline)
                match kind:
                    case b"log":
                        logs.append(self._log_line(rest))
                        if len(logs) > MAX_LOG_LINES:
                            raise self._channel.protocol_violation()
                    case b"call":
                        self._reply(tag, rest, host, deadline)
                    case b"done":
                        outcome = self._output_of(rest, call.max_output, time.monotonic() - started, logs)
                        break
                    case _:
                        fields = self._parsed(rest)
                        too_large = fields.get("reason") == "output_too_large"
                        reason: Reason = "output_too_large" if too_large else "user_error"
                        error = messages.error_of(fields.get("error"))
                        outcome = Outcome(time.monotonic() - started, reason=reason, error=error, logs=logs)
                        break
            self._finish_async_replies(host, deadline)
            return outcome
        except ProcessGone as gone:
            self._signal(signal.SIGKILL)
            if self._async_replies is not None and self._async_replies.is_busy:
                loop_requests.in_thread(host.interrupt)
            reason = self.killed_for or ("memory" if loop_requests.in_thread(self._ran_out_of_memory) else "crashed")
            error = messages.error(*messages.BY_REASON.get(reason, ("Error", str(gone))))
            return Outcome(time.monotonic() - started, reason=reason, error=error, logs=logs)
        finally:
            if self._async_replies is not None:
                self._async_replies.close()
                self._async_replies = None
                self._channel.replies = tuple

    def _finish_async_replies(self, host: Host, deadline: float) -> None:
        """Complete the requests that the code did not wait for."""
        if self._async_replies is None:
            return
        self._answering = host
        try:
            loop_requests.in_thread(partial(self._async_replies.wait, deadline))
        finally:
            self._answering = None
        if self._async_replies.is_busy:
            self.kill("timeout")
            loop_requests.in_thread(host.interrupt)

    def _next_frame(self, tag: bytes, deadline: float) -> tuple[bytes, bytes]:
        found = _FRAME.fullmatch(self._channel.read_bytes(deadline))
        if found is None or found[2] != tag:
            raise self._channel.protocol_violation()
        return found[1], found[3]

    def _parsed(self, rest: bytes) -> dict[str, Any]:
        try:
            fields = json.loads(b"{%b}" % rest)
        except (ValueError, RecursionError) as error:
            raise self._channel.protocol_violation() from error
        return dict(fields)

    def _log_line(self, rest: bytes) -> LogLine:
        fields = self._parsed(rest)
        level = str(fields.get("level"))
        return LogLine(time.time(), level if level in _LEVELS else "info", messages.clean(fields.get("text"), 4096))

    def _output_of(self, rest: bytes, max_bytes: int, duration: float, logs: list[LogLine]) -> Outcome:
        """The output is checked to be valid JSON: `JSON.stringify` can write lone surrogates and, by `JSON.rawJSON`,
        numbers out of range."""
        if not rest.startswith(_OUTPUT):
            raise self._channel.protocol_violation()
        output = rest[len(_OUTPUT) :]
        if len(output) > max_bytes:  # the runner checks this too, but cannot be trusted
            too_large = messages.error("OutputTooLarge", f"the output has more than {max_bytes} bytes")
            return Outcome(duration, reason="output_too_large", error=too_large, logs=logs)
        try:
            orjson.loads(output)
        except orjson.JSONDecodeError as error:
            why = messages.clean(str(error).partition(": line ")[0], 200)
            wrong = messages.error("Error", f"the output is not JSON: {why}")
            return Outcome(duration, reason="user_error", error=wrong, logs=logs)
        return Outcome(duration, output=output.decode(), logs=logs)

    def _reply(self, tag: bytes, rest: bytes, host: Host, deadline: float) -> None:
        found = _HOST_CALL.fullmatch(rest)
        if found is None:
            raise self._channel.protocol_violation()
        number, operation, arguments = found.groups()
        left = max(0.0, deadline - time.monotonic())
        in_background: Callable[[], bytes] | None = None
        self._answering = host
        try:
            answer = host.answer(operation.decode(), arguments, seconds=left)
            if callable(answer):
                in_background, reply = answer, b""
            else:
                reply = _reply_frame(tag, number, answer)
        except HostError as error:
            reply = _error_frame(tag, number, error)
        finally:
            self._answering = None
        if time.monotonic() >= deadline:  # the answer took longer than the call's remaining time
            self.kill("timeout")
            raise ProcessGone("the deadline passed")
        if in_background is None:
            self._channel.write_bytes(reply, deadline)
        else:
            self._begin_async_reply(partial(_call_and_reply, tag, number, in_background), deadline)

    def _begin_async_reply(self, answer: Callable[[], bytes], deadline: float) -> None:
        if self._async_replies is None:
            self._async_replies = AsyncReplies(self._channel.wake)
            self._channel.replies = self._async_replies.take
        self._channel.send_replies(deadline)
        while self._async_replies.is_full:
            self._channel.await_reply(deadline)
            self._channel.send_replies(deadline)
        self._async_replies.begin(answer)

    def _ran_out_of_memory(self) -> bool:
        """V8 prints a message and aborts; Deno's own allocations abort silently. Nothing else aborts."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(1.0)
        aborted = self.popen.returncode in (-signal.SIGABRT, -signal.SIGTRAP, -signal.SIGILL)
        return aborted or "out of memory" in self._channel.stderr_tail()


def _call_and_reply(tag: bytes, number: bytes, answer: Callable[[], bytes]) -> bytes:
    try:
        return _reply_frame(tag, number, answer())
    except HostError as error:
        return _error_frame(tag, number, error)


def _reply_frame(tag: bytes, number: bytes, value: bytes) -> bytes:
    return b'{"t":"reply","tag":"%b","n":%b,"ok":true,"value":%b}' % (tag, number, value)


def _error_frame(tag: bytes, number: bytes, error: HostError) -> bytes:
    return b'{"t":"reply","tag":"%b","n":%b,"ok":false,"value":%b}' % (tag, number, orjson.dumps(error.value))
