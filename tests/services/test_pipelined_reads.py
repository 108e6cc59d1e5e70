"""Reads of one turn of the event loop share a pipeline, and nothing else: no transaction, error or result."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import DataError, OperationalError, connections, transaction

from platform_site.postgres import prepared
from tests.support.event_loop import Loop

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

REGION = "us-east-1"
_WHO = b"SELECT $1::text, pg_backend_pid()::text, pg_current_xact_id()::text"


def read(sql: bytes, *values: bytes) -> Callable[[], Any]:
    return lambda: prepared.read_pipelined(connections[REGION], sql, values)


def test_reads_of_one_turn_share_a_connection_and_no_transaction(loop: Loop) -> None:
    found = [rows[0] for rows in loop.run(*[read(_WHO, b"%d" % number) for number in range(12)])]
    assert [value for value, _, _ in found] == [b"%d" % number for number in range(12)]
    assert len({backend for _, backend, _ in found}) == 1
    assert len({transaction_id for _, _, transaction_id in found}) == 12


def test_more_reads_than_a_pipeline_takes_use_several(loop: Loop, settings: Any) -> None:
    settings.WEB_THREADS = 64  # so that all have a connection
    found = [rows[0] for rows in loop.run(*[read(_WHO, b"%d" % number) for number in range(40)])]
    assert [value for value, _, _ in found] == [b"%d" % number for number in range(40)]
    backends = [backend for _, backend, _ in found]
    assert sorted(map(backends.count, set(backends))) == [8, 16, 16]


def test_another_statement_has_a_connection_of_its_own(loop: Loop) -> None:
    """One that waits for the lock of a table holds back the same statement alone."""
    slow = b"SELECT $1::text, pg_sleep(1)::text, pg_backend_pid()::text"
    ended: list[bytes] = []

    def noted(work: Callable[[], Any], name: bytes) -> Callable[[], Any]:
        return lambda: (work(), ended.append(name))

    loop.run(noted(read(slow, b"1"), b"slow"), *[noted(read(_WHO, b"%d" % number), b"fast") for number in range(4)])
    assert ended == [b"fast"] * 4 + [b"slow"]


def test_an_error_is_that_of_its_own_read(loop: Loop) -> None:
    divided = b"SELECT (12 / $1::int)::text"
    outcomes = loop.run(*[read(divided, value) for value in (b"0", b"3", b"0", b"4", b"x")])
    assert isinstance(outcomes[0], DataError)
    assert isinstance(outcomes[2], DataError)
    assert outcomes[1] == [(b"4",)]
    assert outcomes[3] == [(b"3",)]
    assert isinstance(outcomes[4], DataError)


@pytest.mark.parametrize("position", [0, 1, 4])
def test_a_connection_lost_under_a_pipeline_fails_no_other_read(loop: Loop, position: int) -> None:
    dying = b"SELECT $1::text, CASE WHEN $1::text = 'dies' THEN pg_terminate_backend(pg_backend_pid())::text END"
    values = [b"%d" % number for number in range(5)]
    values[position] = b"dies"
    loop.run(*[read(_WHO, value) for value in values])  # opens the connections
    outcomes = loop.run(*[read(dying, value) for value in values])
    assert isinstance(outcomes.pop(position), OperationalError)
    values.remove(b"dies")
    assert outcomes == [[(value, None)] for value in values]


def test_a_connection_that_was_lost_before_is_replaced(loop: Loop) -> None:
    works = [read(_WHO, b"%d" % number) for number in range(4)]
    [backend] = {rows[0][1] for rows in loop.run(*works)}
    assert backend is not None
    with connections[REGION].cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [int(backend)])
    assert [rows[0][0] for rows in loop.run(*works)] == [b"0", b"1", b"2", b"3"]


def test_a_read_in_a_transaction_is_part_of_it(loop: Loop) -> None:
    """Here in a thread: on the loop there are none."""
    with transaction.atomic(using=REGION):
        [[mine]] = prepared.run(REGION, b"SELECT pg_current_xact_id()::text", ())
        [[_, _, seen]] = prepared.read_pipelined(connections[REGION], _WHO, [b"1"])
        assert seen == mine
        found = {rows[0][2] for rows in loop.run(*[read(_WHO, b"1") for _ in range(3)])}
        assert mine not in found
        assert len(found) == 3
