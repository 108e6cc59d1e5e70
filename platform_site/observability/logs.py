"""Log lines: one JSON object each (`LOG_FORMAT=json`), or readable text under `manage.py up`. Every line carries the id
of the request it belongs to, in the web processes and in Celery's. Secrets are cut by what they look like, not by where
they stand, in the finished line: message, extras and stack traces alike. Every request makes one line, by `access`,
which names the route and never the path."""

import contextlib
import logging
import re
import time
import traceback
from contextvars import Token
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import orjson
from django.db.utils import InterfaceError, OperationalError

from platform_site.fastpath.batching import Batch
from platform_site.http.errors import ApiError
from platform_site.http.requests import KEY_BEGINNINGS, close_request, current_request_id, open_request

_SECRETS: Final = re.compile(
    rf"(?P<kind>\b(?:{KEY_BEGINNINGS})_)"
    r"""[A-Za-z0-9+/=_-]{8,}
    |   \beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?   # JWTs
    |   (?P<scheme>\b(?:(?i:Bearer)|Basic)\s+)[A-Za-z0-9._~+/=-]{8,}
    |   (?P<url>://[^\s:/@"']{0,100}:)[^\s/@"']{1,200}(?=@)
    |   (?P<pair>
            ["']?\b(?i:(?:[a-z]{1,20}_){0,2}(?:password|secret|(?:refresh|access)_token|code_verifier))["']?\s*[:=]\s*
        )
        (?:"[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*'|[^\s,;&"'}]+)
    """,
    re.VERBOSE,
)
_STANDARD: Final = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}
REDACTED: Final = "[redacted]"
MAX_FIELDS_SHOWN: Final = 10
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What ends a line somewhere, drives a terminal, or shows a text in another order than it has: all but the tab."""


def redact(text: str) -> str:
    """`text` without anything that looks like a secret (what kind it was stays readable), and as UTF-8 can write it."""
    text = text.encode("utf-8", "replace").decode()
    return _SECRETS.sub(
        lambda found: (found["kind"] or found["scheme"] or found["url"] or found["pair"] or "") + REDACTED, text
    )


class JsonFormatter(logging.Formatter):
    """`{"at", "level", "logger", "message", "request_id"?, …extras, "trace"?}`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        request_id = current_request_id()
        if request_id is not None:
            line["request_id"] = request_id
        line.update({name: _plain(value) for name, value in _extras(record).items()})
        if record.exc_info and record.exc_info[0] is not None:
            line["trace"] = redact("".join(traceback.format_exception(*record.exc_info)))
        text = orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        # orjson escapes those below the blank, and others end a line or drive a terminal, too.
        return text if text.isascii() and "\x7f" not in text else _CONTROLS.sub(_json_escape, text)


class TextFormatter(logging.Formatter):
    """`12:34:56 warning platform.errors the message key=value req_…`, for people. A trace follows in lines of its own,
    indented: whatever an exception says, none of them looks like another record. Control characters are escaped
    everywhere."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        parts = [at, record.levelname.lower(), record.name, record.getMessage()]
        parts += [f"{name}={value}" for name, value in _extras(record).items() if value is not None]
        request_id = current_request_id()
        if request_id is not None:
            parts.append(request_id)
        text = _escaped(" ".join(parts))
        if record.exc_info and record.exc_info[0] is not None:
            trace = "".join(traceback.format_exception(*record.exc_info)).rstrip()
            text += "".join(f"\n  {_escaped(line)}" for line in trace.split("\n"))
        return redact(text)


def _escaped(text: str) -> str:
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _json_escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(record).items()
        if name not in _STANDARD and name not in ("request", "response")
    }


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    return value if value is None or isinstance(value, bool | int | float) else redact(str(value))


# ── One line per request ─────────────────────────────────────────────────────────────────────────────────────────────

_access = logging.getLogger("platform.access")


def access(
    method: str,
    route: str,
    status: int,
    seconds: float,
    caller: str | None,
    environment_id: str | None,
    ip: str | None,
    replica: str | None = None,
    table: str | None = None,
    error: ApiError | None = None,
) -> None:
    """The one line of a request. `route` is the template (`/v1/rows/{table}`), so no value of a client's is in it.
    `replica` names the one that answered in the primary's place. `table` and `error` are for text lines of 4xx alone.
    Built without `Logger._log`, which would walk the stack to learn who called: half of what a line costs."""
    if not _access.isEnabledFor(logging.INFO):
        return
    record = _AccessRecord(
        args=(method, route, status),
        created=time.time(),
        method=method,
        route=route,
        status=status,
        duration_ms=round(seconds * 1000, 2),
        caller=caller,
        environment=environment_id,
        ip=ip,
        replica=replica,
        request_id=current_request_id(),
        table=table,
        error=error,
    )
    for handler in _access.handlers:  # what `Logger.handle` comes to, by three calls fewer: it propagates nothing
        handler.handle(record)


class _AccessRecord(logging.LogRecord):
    """A record that says what all of them have in common once, and not where it was made and by which thread: finding
    that out is most of what an ordinary one costs."""

    def __init__(self, **facts: Any) -> None:
        self.__dict__ = _IN_COMMON | facts


_IN_COMMON: Final = {**vars(logging.LogRecord(_access.name, logging.INFO, "", 0, "%s %s %d", (), None))}


class JsonAccessFormatter(JsonFormatter):
    """The same shape for the access log, whose fields are all our own: nothing to redact, one dict, one dump."""

    def format(self, record: logging.LogRecord) -> str:
        facts = record.__dict__
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": "info",
            "logger": "platform.access",
            "message": "request",
            "request_id": facts["request_id"],
            "method": facts["method"],
            "route": facts["route"],
            "status": facts["status"],
            "duration_ms": facts["duration_ms"],
            "caller": facts["caller"],
            "environment": facts["environment"],
            "ip": facts["ip"],
        }
        if facts["replica"] is not None:
            line["replica"] = facts["replica"]
        return orjson.dumps(line).decode()


class TextAccessFormatter(TextFormatter):
    """`12:34:56 200 GET /v1/projects 3.1 ms usr_… req_…`, and for a developer after a 4xx what was wrong:
    `… table=tasks validation_failed title:too_long colour:unknown`."""

    def format(self, record: logging.LogRecord) -> str:
        facts = record.__dict__
        at = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S")
        line = (
            f"{at} {facts['status']} {facts['method']} {facts['route']} {facts['duration_ms']} ms"
            f" {facts['caller'] or '-'} {facts['request_id']}"
        )
        if not 400 <= facts["status"] < 500:
            return line
        table, error = facts["table"], facts["error"]
        parts = [line] if table is None else [line, f"table={table}"]
        if error is not None:
            shown = error.fields[:MAX_FIELDS_SHOWN]
            parts += [error.code, *(f"{field.field}:{field.code}" for field in shown)]
        return redact(_escaped(" ".join(parts)))  # the names of fields are the client's


class AccessHandler(logging.StreamHandler[TextIO]):
    """Formats and writes access log lines in batches, in another thread. A write per line would cost each request a
    system call and wake the reader of the pipe: 12 µs here and 25 µs in `manage.py up`. And a blocked reader would
    block every request; here it only loses lines beyond MOST_WAITING. A killed process loses the lines of its last
    `batching.PAUSE`; a terminating one calls `flush`."""

    MOST_WAITING: Final = 50_000

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self.lines: Batch[logging.LogRecord] = Batch(self._write, most=self.MOST_WAITING)

    def handle(self, record: logging.LogRecord) -> bool:
        """Take the record. Without the handler's lock, which there is no need for."""
        return self.lines.put(record)

    def flush(self) -> None:
        """Write what waits, now."""
        self.lines.flush()

    def _write(self, records: list[logging.LogRecord]) -> None:
        text = "".join([f"{self.format(record)}\n" for record in records])
        # A full disk or a reader that is gone: there is no other place to say so.
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text)
            self.stream.flush()


# ── The request id of a task ─────────────────────────────────────────────────────────────────────────────────────────

_HEADER: Final = "platform_request_id"
_open_tasks: Final[dict[str, Token[str | None]]] = {}


def connect_celery() -> None:
    """Let a task have the id of the request that sent it, during the task's run. Called at start."""
    from celery import signals

    signals.before_task_publish.connect(_stamp, dispatch_uid="request-id", weak=False)
    signals.task_prerun.connect(_begin, dispatch_uid="request-id", weak=False)
    signals.task_postrun.connect(_end, dispatch_uid="request-id", weak=False)
    signals.setup_logging.connect(_keep_logging, dispatch_uid="logging", weak=False)


def _stamp(headers: dict[str, Any] | None = None, **_: Any) -> None:
    request_id = current_request_id()
    if headers is not None and request_id is not None:
        headers.setdefault(_HEADER, request_id)


def _begin(task_id: str, task: Any, **_: Any) -> None:
    _open_tasks[task_id] = open_request(task.request.get(_HEADER))


def _end(task_id: str, **_: Any) -> None:
    token = _open_tasks.pop(task_id, None)
    if token is not None:
        close_request(token)


def _keep_logging(**_: Any) -> None:
    """A receiver of `setup_logging` tells Celery that logging is configured."""


class FailedTasks(logging.Filter):
    """Celery's log record of a failed task, without its redundant `data`. A task that only failed because a database
    was unavailable gets one line: a periodic job repeats it (`platform_site.background.dispatch`)."""

    def filter(self, record: logging.LogRecord) -> bool:
        task = record.__dict__.pop("data", {}).get("name")
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OperationalError | InterfaceError):
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.msg, record.args, record.exc_info = "a task waits for PostgreSQL", (), None
            record.__dict__ |= {"task": task, "why": type(error).__name__}
        return True
