"""Log lines: one a request, with its id, and without a secret whatever wrote it."""

import json
import logging
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from celery.contrib.testing.worker import start_worker
from django.db import connection
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from platform_site.celery import app, stop_schedulers
from platform_site.http.errors import FieldError, ValidationFailed
from platform_site.http.requests import close_request, current_request_id, open_request
from platform_site.observability import logs
from platform_site.observability.logs import (
    JsonAccessFormatter,
    JsonFormatter,
    TextAccessFormatter,
    TextFormatter,
    redact,
)
from tests.support.client import Api
from tests.support.timing import within
from tests.support.unavailable import terminate_connection

JWT = "eyJhbGciOiJFUzI1NiIsImtpZCI6IngifQ.eyJzdWIiOiJ1c3JfMSJ9.c2lnbmF0dXJlLXNpZ25hdHVyZQ"
SECRETS = {
    "server key": "sk_4fT9xKq2LmN8pRs5VwYzAbCdEfGhJkMnQw3Rt5",
    "refresh token": "rt_hV2b-Kq9_xYz0123456789abcdefABCDEF",
    "signing secret": "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
    "OAuth code": "oac_0123456789abcdef",
    "proof of an identity": "oal_0123456789abcdef-_",
    "link": "lnk_0123456789abcdef",
    "inbound address": "hk_01k6zv3c5jf6q8m0h2w4x7y9ab4fT9xKq2LmN8pRs5",
    "access token": JWT,
    "database password": "hunter2hunter2",
}


def line_of(formatter: logging.Formatter, message: str, *args: object, **extra: object) -> str:
    record = logging.LogRecord("a.logger", logging.WARNING, "f.py", 1, message, args, None)
    record.__dict__.update(extra)
    return formatter.format(record)


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
@pytest.mark.parametrize("kind", SECRETS)
def test_no_secret_is_in_a_line_wherever_it_stood(formatter: logging.Formatter, kind: str) -> None:
    secret = SECRETS[kind]
    url = f"postgresql://platform:{secret}@db.internal/control" if kind == "database password" else secret
    try:
        raise RuntimeError(f"failed with {url}")
    except RuntimeError:
        trace = sys.exc_info()
    lines = [
        line_of(formatter, "got %s", url),
        line_of(formatter, f"Authorization: Bearer {url}"),
        line_of(formatter, "x", detail=url),
        line_of(formatter, "x", detail={"deep": [url]}),
        line_of(formatter, "x", exc_info=trace),
        line_of(formatter, 'body {"password": "%s", "refresh_token": "%s"}', secret, secret),
        line_of(formatter, "x", detail={"password": secret}),
        line_of(formatter, "password=%s", secret),
        line_of(formatter, 'body {"current_password": "%s"} %s', "hunter2 and 3", {"client_secret": secret}),
    ]
    for line in lines:
        assert secret not in line
        assert "hunter2 and 3" not in line
        assert "[redacted]" in line


def test_what_a_secret_was_stays_readable() -> None:
    assert redact("key sk_4fT9xKq2LmN8pRs5VwYz failed") == "key sk_[redacted] failed"
    assert redact("authorization: bearer 0123456789abcdef") == "authorization: bearer [redacted]"
    assert redact("REDIS_PASSWORD=hunter2 Client_Secret: hunter3") == (
        "REDIS_PASSWORD=[redacted] Client_Secret: [redacted]"
    )
    assert redact("postgresql://platform:hunter2@db/x") == "postgresql://platform:[redacted]@db/x"
    assert redact("prj_01k6zv3c5jf6q8m0h2w4x7y9ab env_01k6zv3c5jf6q8m0h2w4x7y9ab task_id risk_score") == (
        "prj_01k6zv3c5jf6q8m0h2w4x7y9ab env_01k6zv3c5jf6q8m0h2w4x7y9ab task_id risk_score"
    )


@given(st.text(max_size=300))
def test_redacting_any_text_ends_and_keeps_no_key(text: str) -> None:
    assert SECRETS["server key"] not in redact(f"{text} {SECRETS['server key']}")


@pytest.mark.exhaustive
def test_redacting_a_hostile_megabyte_is_quick() -> None:
    for text in (
        "sk_" * 300_000,
        "eyJ" + "a." * 500_000,
        "password" * 120_000,
        'password="' + "\\" * 1_000_000,
        "://" * 300_000,
        "a" * 1_000_000 + ":",
        "password:" + " " * 500_000,
        "a_" * 500_000,
        "a_b_ " * 200_000,
        "Bearer" + " " * 500_000,
    ):
        began = time.process_time()
        redact(text)
        assert time.process_time() - began < within(1), text[:20]


def test_a_json_line_is_one_line_with_the_request() -> None:
    token = open_request("req-1")
    try:
        line = line_of(JsonFormatter(), "two\nlines \ud800 %s", "\x00", n=1, text="a\nb", missing=None, thing=object())
    finally:
        close_request(token)
    assert "\n" not in line
    read = json.loads(line)
    assert (read["request_id"], read["level"], read["logger"]) == ("req-1", "warning", "a.logger")
    assert (read["n"], read["text"], read["missing"]) == (1, "a\nb", None)


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_the_request_of_a_record_is_not_in_its_line(formatter: logging.Formatter) -> None:
    assert "una@example.com" not in line_of(formatter, "x", request=RequestFactory().get("/?email=una@example.com"))


def test_a_clients_text_cannot_forge_a_line() -> None:
    line = line_of(TextFormatter(), "got %s", "x\n12:00:00 200 GET /admin", detail="y\r\n12:00:00 forged")
    assert len(line.splitlines()) == 1


HOSTILE = "\x1b]0;mine\x07\x1b[2J a\rb\x85c\u2028d\u2029e\x9b31mf\x7f\x00\x0b\x0c\x1cg\u202eh\u2066i\tj"
ESCAPED = r"\x1b]0;mine\x07\x1b[2J a\rb\x85c\u2028d\u2029e\x9b31mf\x7f\x00\x0b\x0c\x1cg\u202eh\u2066i" + "\tj"


def test_no_text_drives_the_terminal_of_who_reads_the_log() -> None:
    assert line_of(TextFormatter(), "got %s", HOSTILE, detail=HOSTILE).endswith(f"got {ESCAPED} detail={ESCAPED}")


def test_a_trace_stays_readable_and_none_of_its_lines_is_a_record() -> None:
    forged = "12:00:00 error platform.errors forged"

    def fail() -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError(f"{HOSTILE}\n{forged}\n\n\r\n{forged}") from error

    try:
        fail()
    except ValueError:
        trace = sys.exc_info()
    first, *lines = line_of(TextFormatter(), "failed", exc_info=trace).split("\n")
    assert first.endswith(" warning a.logger failed")
    assert lines[0] == "  Traceback (most recent call last):"
    assert "  KeyError: 'first'" in lines
    assert "      fail()" in lines
    assert lines[-5:] == [f"  ValueError: {ESCAPED}", f"  {forged}", "  ", r"  \r", f"  {forged}"]
    assert all(line.startswith("  ") and len(line.splitlines()) == 1 for line in lines)


class Collect(logging.Handler):
    """The lines that its formatter makes."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.mark.usefixtures("things")
def test_what_a_client_sends_is_one_line_of_json_without_controls(api: Api) -> None:
    said = HOSTILE.replace("\0", "")  # which no request may say
    handler = Collect(JsonFormatter())
    logger = logging.getLogger("platform.errors")
    logger.addHandler(handler)
    try:
        for text in (said, "Grüße 日本"):
            assert api.get(f"/v1/test/faults/any?says={quote(text)}").status == 500
    finally:
        logger.removeHandler(handler)
    hostile, kind = handler.lines
    assert len(hostile.splitlines()) == 1
    assert not any(unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp") for letter in hostile)
    assert f"RuntimeError: {said}\n" in json.loads(hostile)["trace"]
    assert r"\u0085c\u2028d\u2029e\u009b31mf\u007f" in hostile
    assert "RuntimeError: Grüße 日本" in kind, "other letters stay readable"


def test_a_text_line_of_a_4xx_says_which_fields_were_wrong() -> None:
    handler = Collect(TextAccessFormatter())
    logger = logging.getLogger("platform.access")
    logger.addHandler(handler)
    fields = [FieldError(name, "unknown", "No.") for name in ("colour", "sk_4fT9xKq2LmN8pRs5VwYzAbCd", "a\nb\x1b[2J")]
    fields += [FieldError(f"more_{number}", "unknown", "No.") for number in range(500)]
    error = ValidationFailed(fields=fields)
    try:
        for status in (422, 200, 503):
            logs.access(
                method="POST", route="/v1/rows/<str:table>", status=status, duration_ms=1.0, caller="key_1",
                environment=None, ip=None, replica=None, table="tasks", error=error,
            )  # fmt: skip
    finally:
        logger.removeHandler(handler)
    wrong, *others = handler.lines
    assert "422 POST /v1/rows/<str:table>" in wrong
    assert "table=tasks validation_failed colour:unknown sk_[redacted]:unknown a\\nb\\x1b[2J:unknown more_0" in wrong
    assert "more_9" not in wrong
    assert "No." not in wrong
    assert not any("tasks" in line or "colour" in line for line in others)


@pytest.mark.parametrize("formatter", [JsonAccessFormatter(), TextAccessFormatter()])
def test_each_request_makes_one_line_that_names_the_route(
    api: Api, things: str, caplog: pytest.LogCaptureFixture, formatter: logging.Formatter
) -> None:
    handler = Collect(formatter)
    lines = handler.lines
    logger = logging.getLogger("platform.access")
    logger.addHandler(handler)
    try:
        path = "/v1/test/things/sk_4fT9xKq2LmN8pRs5VwYzAbCdEfGhJkMn?cursor=secret-cursor"
        api.get(path, token="good", headers={"X-Request-Id": "find-me"})
        api.post("/v1/test/things", token="sk_4fT9xKq2LmN8pRs5VwYzAbCdEfGhJkMn", json={})
        api.get("/v1/sk_4fT9xKq2LmN8pRs5VwYzAbCdEfGhJkMn")
        api.request("SK_4FT9", "/v1/nothing")
        api.get("/admin/login/")
        assert [api.get("/healthz").status, api.post("/healthz", json={}).status] == [200, 405]
    finally:
        logger.removeHandler(handler)
    assert len(lines) == 6, "a probe has one only if it fails"
    assert not any("sk_4f" in line or "secret-cursor" in line or "SK_" in line for line in lines)
    assert "/v1/test/things/<str:thing_id>" in lines[0]
    assert "find-me" in lines[0]
    assert "key_01" in lines[0]
    if isinstance(formatter, JsonAccessFormatter):
        read = json.loads(lines[0])
        assert (read["method"], read["status"], read["caller"]) == ("GET", 200, "key_01")
        assert read["environment"].startswith("env_")
        assert 0 < read["duration_ms"] < 5000


@pytest.fixture
def second_clocks_stopped() -> Iterator[None]:
    """A worker in a thread starts them, and its way of ending does not stop them: they would meet other tests."""
    yield
    stop_schedulers()


@pytest.mark.usefixtures("second_clocks_stopped")
@pytest.mark.timeout(60)
def test_task_has_the_id_of_the_request_that_notified_it() -> None:
    """A real worker on the real broker: what the task reads is what the request was called."""
    seen: list[str | None] = []
    done = threading.Event()

    @app.task(name="tests.note_request_id", shared=False)
    def note(value: str) -> None:
        seen.append(current_request_id())
        if len(seen) == 2:
            done.set()

    with start_worker(
        app, pool="solo", perform_ping_check=False, loglevel="ERROR", queues=["request-ids"], shutdown_timeout=20
    ):
        token = open_request("from-the-web")
        try:
            note.apply_async(["x"], queue="request-ids")
        finally:
            close_request(token)
        note.apply_async(["y"], queue="request-ids")
        assert done.wait(20)
    assert "from-the-web" in seen
    (other,) = [one for one in seen if one != "from-the-web"]
    assert other is not None
    assert other.startswith("req_"), "a task that no request caused has an id of its own"
    assert current_request_id() is None


@pytest.mark.django_db(transaction=True)
def test_lost_database_logs_one_line_and_other_task_errors_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @app.task(name="tests.lose_the_database", shared=False)
    def lose() -> None:
        connection.close()  # an older one would be checked before it is used again
        connection.ensure_connection()
        terminate_connection(connection)
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")

    @app.task(name="tests.fail", shared=False)
    def fail() -> None:
        raise ValueError("of our own making")

    for task in (lose, fail):
        task.apply()
    connection.close()
    lost, failed = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert (lost["level"], lost["message"]) == ("warning", "a task waits for PostgreSQL")
    assert (lost["task"], lost["why"]) == ("tests.lose_the_database", "OperationalError")
    assert "trace" not in lost
    assert "ValueError: of our own making" in failed["trace"]
    assert failed["message"].startswith("Task tests.fail[")
    assert "data" not in failed
