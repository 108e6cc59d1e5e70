"""Log lines: JSON (`LOG_FORMAT=json`) or text, with the request's id, in web processes and Celery. Secrets are redacted
by their form in the finished line. `access` writes one line per request, with the route and never the path."""

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
"""Line breaks, terminal control and direction characters; not the tab."""


def redact(text: str) -> str:
    """Secrets are replaced by their kind."""
    text = text.encode("utf-8", "replace").decode()
    return _SECRETS.sub(
        lambda found: (found["kind"] or found["scheme"] or found["url"] or found["pair"] or "") + REDACTED, text
    )


class JsonFormatter(logging.Formatter):
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
        # orjson only escapes those below U+0020; others also end a line or control a terminal.
        if text.isascii() and "\x7f" not in text:
            return text
        return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class TextFormatter(logging.Formatter):
    """`12:34:56 warning platform.errors the message key=value req_…`. Traces are indented, so that no line looks like a
    record; control characters are escaped."""

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


_access = logging.getLogger("platform.access")


def access(**facts: Any) -> None:
    """`table` and `error` are for text lines of 4xx. Not by `Logger._log`, which walks the stack: half of the time."""
    if not _access.isEnabledFor(logging.INFO):
        return
    args = (facts["method"], facts["route"], facts["status"])
    record = _AccessRecord(args=args, created=time.time(), request_id=current_request_id(), **facts)
    for handler in _access.handlers:  # as `Logger.handle`, by three calls fewer: this logger does not propagate
        handler.handle(record)


class _AccessRecord(logging.LogRecord):
    """A record without caller and thread, which take most of the time of an ordinary one."""

    def __init__(self, **facts: Any) -> None:
        self.__dict__ = _COMMON_FIELDS | facts


_COMMON_FIELDS: Final = {**vars(logging.LogRecord(_access.name, logging.INFO, "", 0, "%s %s %d", (), None))}


class JsonAccessFormatter(JsonFormatter):
    """Fields are our own: no redaction."""

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
    """`12:34:56 200 GET /v1/projects 3.1 ms usr_… req_…`; after a 4xx also `table=tasks validation_failed a:b`."""

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
    """Writes access log lines in batches, in another thread: a write costs each request 12 µs, and a blocked reader
    would block it. Lines beyond MAX_WAITING are lost, and those of the last `batching.PAUSE` when killed."""

    MAX_WAITING: Final = 50_000

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self.lines: Batch[logging.LogRecord] = Batch(self._write, max_items=self.MAX_WAITING)

    def handle(self, record: logging.LogRecord) -> bool:
        return self.lines.put(record)

    def flush(self) -> None:
        self.lines.flush()

    def _write(self, records: list[logging.LogRecord]) -> None:
        text = "".join([f"{self.format(record)}\n" for record in records])
        # A full disk or a closed pipe: there is no other place to report it.
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text)
            self.stream.flush()


_HEADER: Final = "platform_request_id"
_open_tasks: Final[dict[str, Token[str | None]]] = {}


def connect_celery() -> None:
    """A task has the id of the request that sent it."""
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
    """With this handler, Celery does not configure logging."""


class FailedTasks(logging.Filter):
    """Without `data`, and without the trace if a database was unavailable: a periodic job repeats the task."""

    def filter(self, record: logging.LogRecord) -> bool:
        task = record.__dict__.pop("data", {}).get("name")
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OperationalError | InterfaceError):
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.msg, record.args, record.exc_info = "a task waits for PostgreSQL", (), None
            record.__dict__ |= {"task": task, "why": type(error).__name__}
        return True
