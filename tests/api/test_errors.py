"""Every exception becomes the one envelope, and reveals no internals."""

import logging

import psycopg
import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from platform_site.postgres.sqlstates import error_for
from tests.api.urls import RUNS
from tests.support.client import Api

pytestmark = pytest.mark.usefixtures("things")

ANSWERS = {
    "drf-validation": (422, "validation_failed"),
    "drf-parse": (400, "invalid_request"),
    "drf-auth": (401, "unauthorized"),
    "drf-permission": (403, "forbidden"),
    "drf-not-found": (404, "not_found"),
    "drf-throttled": (429, "rate_limited"),
    "http404": (404, "not_found"),
    "permission": (403, "forbidden"),
    "suspicious": (400, "invalid_request"),
    "bad-request": (400, "invalid_request"),
    "host": (400, "invalid_request"),
    "unforeseen": (500, "internal"),
    "conflict": (409, "conflict"),
    "hint": (403, "forbidden"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_exception_is_answered_by_its_meaning_and_not_by_its_text(api: Api, name: str) -> None:
    answer = api.get(f"/v1/test/faults/{name}")
    assert (answer.status, answer.error) == ANSWERS[name]
    assert b"secret" not in answer.body


def test_nested_errors_of_serializers_become_a_flat_list(api: Api) -> None:
    assert api.get("/v1/test/faults/drf-validation").fields == {"a.0.b": "invalid"}


def test_a_throttle_says_when_to_come_back(api: Api) -> None:
    assert api.get("/v1/test/faults/drf-throttled").headers["Retry-After"] == "7"


def test_a_hint_is_part_of_the_error(api: Api) -> None:
    assert api.get("/v1/test/faults/hint").json["error"]["hint"] == "Ask an owner."


def test_an_unforeseen_error_is_logged_with_its_trace_and_its_request(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "platform.errors"):
        api.get("/v1/test/faults/unforeseen", headers={"X-Request-Id": "find-me"})
    (record,) = [record for record in caplog.records if record.name == "platform.errors"]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RuntimeError)


SQLSTATES = {
    **dict.fromkeys(
        ["22001", "22003", "22007", "22008", "22P02", "22P05", "22021", "23502", "23514"], (422, "invalid")
    ),
    **dict.fromkeys(["23505", "23503"], (422, "conflict")),
    **dict.fromkeys(
        ["40001", "40P01", "55P03", "57014", "53300", "53100", "57P01", "57P02", "57P03", "08006"], (503, None)
    ),
    "42501": (404, None),
    "42P01": (500, None),
    "42601": (500, None),
    "XX000": (500, None),
}


@pytest.mark.django_db
@pytest.mark.parametrize("sqlstate", SQLSTATES)
def test_an_error_of_postgresql_is_answered_by_its_sqlstate(api: Api, sqlstate: str) -> None:
    status, code = SQLSTATES[sqlstate]
    answer = api.post(f"/v1/test/faults/{sqlstate}")
    assert answer.status == status
    if code:
        assert answer.fields == {"$body": code}
    if status == 503:
        assert answer.headers["Retry-After"] == "1"


@pytest.mark.django_db
def test_unique_and_foreign_key_are_told_in_the_same_words(api: Api) -> None:
    def body(sqlstate: str) -> object:
        json = api.post(f"/v1/test/faults/{sqlstate}").json
        del json["error"]["request_id"]
        return json

    assert body("23505") == body("23503")


@pytest.mark.django_db
def test_a_forgotten_nul_is_the_clients_mistake(api: Api) -> None:
    """psycopg refuses it before the server sees it, so there is no SQLSTATE."""
    with pytest.raises(Exception, match="NUL") as caught, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT %s::text", ["a\0b"])
    assert isinstance(caught.value.__cause__, psycopg.DataError)
    assert error_for(caught.value).status == 422


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("method", "times", "status", "runs"),
    [
        ("GET", 1, 200, 2),
        ("GET", 2, 200, 3),
        ("GET", 3, 503, 3),
        ("POST", 2, 200, 3),
        ("POST", 3, 503, 3),
    ],
)
def test_an_undone_transaction_runs_again_at_most_three_times(
    api: Api, method: str, times: int, status: int, runs: int
) -> None:
    RUNS.clear()
    assert api.request(method, f"/v1/test/undone/{times}").status == status
    assert len(RUNS) == runs


@pytest.mark.django_db(transaction=True)
def test_after_something_was_committed_nothing_runs_again(api: Api) -> None:
    RUNS.clear()
    made = Group.objects.filter(name__startswith="made")
    made.delete()
    assert api.post("/v1/test/undone-later/1").status == 503
    assert list(made.values_list("name", flat=True)) == ["made 1"]
    made.delete()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("method", "times", "status", "runs"),
    [
        ("GET", 1, 200, 2),
        ("GET", 2, 503, 2),
        ("HEAD", 1, 200, 2),
        ("POST", 1, 503, 1),
    ],
)
def test_a_read_whose_connection_died_runs_once_more_and_a_write_does_not(
    api: Api, method: str, times: int, status: int, runs: int
) -> None:
    RUNS.clear()
    assert api.request(method, f"/v1/test/cut/{times}").status == status
    assert len(RUNS) == runs
    RUNS.clear()
    assert api.get("/v1/test/cut/0").status == 200, "the next request has a living connection"
