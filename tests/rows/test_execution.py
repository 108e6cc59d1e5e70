"""Statements on a region's connection: transactions, preparation, dead connections, time-outs, row access."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import DataError, IntegrityError, OperationalError, ProgrammingError, connections, transaction
from psycopg import sql

from platform_site.postgres import libpq, libpq_connection, prepared, row_access
from tests.support.unavailable import terminate_own_backend

REGION = "us-east-1"
pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


@pytest.fixture(autouse=True)
def numbers() -> Iterator[None]:
    connections[REGION].close()  # that of other tests has prepared statements
    with connections[REGION].cursor() as cursor:
        cursor.execute("CREATE TABLE platform.numbers (n bigint PRIMARY KEY)")
    yield
    connections[REGION].close()
    with connections[REGION].cursor() as cursor:
        cursor.execute("DROP TABLE platform.numbers")


def put(n: int) -> list[libpq.Row]:
    return prepared.run(
        REGION, b"INSERT INTO platform.numbers VALUES ($1::bigint) RETURNING n::text", [str(n).encode()]
    )


def all_numbers() -> list[int]:
    return [int(n or 0) for (n,) in prepared.run(REGION, b"SELECT n FROM platform.numbers ORDER BY n", [])]


def seen_by_another() -> int:
    """How many numbers a connection of its own sees: those that are committed."""
    counted: list[int] = []

    def look() -> None:
        counted.append(len(all_numbers()))
        connections[REGION].close()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(20)
    return counted[0]


def prepared_names() -> set[str]:
    with connections[REGION].cursor() as cursor:
        cursor.execute("SELECT name FROM pg_prepared_statements WHERE name LIKE %s", ["rows_%"])
        return {name for (name,) in cursor.fetchall()}


def test_values_come_back_as_the_text_that_postgresql_wrote() -> None:
    sql = b"SELECT $1::bigint + 1, $2::text, NULL, $3::text[]"
    assert prepared.run(REGION, sql, [b"41", "ä".encode(), b'{a,"b c"}']) == [(b"42", "ä".encode(), None, b'{a,"b c"}')]


def test_a_statement_outside_a_transaction_commits_by_itself() -> None:
    assert put(1) == [(b"1",)]
    assert seen_by_another() == 1


def test_the_first_statement_of_a_transaction_is_part_of_it() -> None:
    for n in (1, 2, 3):  # by text, at its preparation, and prepared
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=REGION):
            put(n)
            assert seen_by_another() == 0
            raise ZeroDivisionError
    assert all_numbers() == []
    with transaction.atomic(using=REGION):
        put(4)
    assert seen_by_another() == 1


def test_a_savepoint_rolls_back_alone_and_statements_stay_prepared() -> None:
    with transaction.atomic(using=REGION):
        put(1)
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=REGION):
            put(2)
            raise ZeroDivisionError
        put(3)
    assert all_numbers() == [1, 3]
    assert len(prepared_names()) == 1


def test_a_statement_is_prepared_at_its_second_appearance() -> None:
    put(1)
    assert prepared_names() == set()
    put(2)
    assert len(prepared_names()) == 1
    put(3)
    assert len(prepared_names()) == 1


def test_a_long_statement_is_not_prepared() -> None:
    text = b"SELECT 1 WHERE 0 = 0" + b" AND 0 = 0" * 1_700
    assert len(text) > libpq_connection.MAX_PREPARED
    for _ in range(3):
        assert prepared.run(REGION, text, []) == [(b"1",)]
    for _ in range(2):
        assert len(libpq.pipeline_in_order(connections[REGION], [(text, ())])) == 1
        assert len(libpq.pipeline_each(connections[REGION], [(text, ())])) == 1
    assert prepared_names() == set()


def test_rollback_and_ddl_through_django_leave_the_prepared_statements() -> None:
    for n in (1, 2):
        put(n)
    before = prepared_names()
    with (
        contextlib.suppress(ZeroDivisionError),
        transaction.atomic(using=REGION),
        connections[REGION].cursor() as cursor,
    ):
        cursor.execute("CREATE TABLE platform.passing (n int)")
        cursor.execute("DROP TABLE platform.passing")
        raise ZeroDivisionError
    with connections[REGION].cursor() as cursor:
        cursor.execute("ALTER TABLE platform.numbers ADD COLUMN extra text")
    put(3)
    assert prepared_names() == before


def test_a_prepared_statement_that_vanished_is_prepared_again() -> None:
    for n in (1, 2):
        put(n)
    with connections[REGION].cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    assert put(3) == [(b"3",)]
    put(4)
    assert len(prepared_names()) == 1
    assert all_numbers() == [1, 2, 3, 4]


def test_lost_prepared_statement_in_a_transaction_fails_it_once() -> None:
    for n in (1, 2):
        put(n)

    @transaction.atomic(using=REGION)
    def forget_and_put() -> None:
        with connections[REGION].cursor() as cursor:
            cursor.execute("DEALLOCATE ALL")
        put(3)

    with pytest.raises(ProgrammingError) as caught:
        forget_and_put()
    assert getattr(caught.value.__cause__, "sqlstate", None) == "26000"
    with transaction.atomic(using=REGION):
        put(3)
    assert all_numbers() == [1, 2, 3]


def test_the_least_recently_used_statement_is_deallocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libpq_connection, "PREPARED_PER_CONNECTION", 2)
    for text in (b"SELECT 1", b"SELECT 2", b"SELECT 1", b"SELECT 3"):
        for _ in range(2):
            prepared.run(REGION, text, [])
    with connections[REGION].cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements WHERE name LIKE %s ORDER BY 1", ["rows_%"])
        assert cursor.fetchall() == [("SELECT 1",), ("SELECT 3",)]


def test_prepared_statements_are_limited_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libpq_connection, "PREPARED_BYTES_PER_CONNECTION", 30)
    for text in (b"SELECT 1", b"SELECT 2", b"SELECT 3", b"SELECT 'longer text'"):
        for _ in range(2):
            assert len(prepared.run(REGION, text, [])) == 1
    with connections[REGION].cursor() as cursor:
        cursor.execute("SELECT statement FROM pg_prepared_statements WHERE name LIKE %s ORDER BY 1", ["rows_%"])
        assert cursor.fetchall() == [("SELECT 'longer text'",), ("SELECT 3",)]


def _backend() -> int:
    with connections[REGION].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def _ask_for(table: int) -> None:
    """By the statement of a shape, which is prepared at its second appearance."""
    prepared.run(REGION, b'SELECT $1::int FROM "%b"."t%d"' % (ENVIRONMENT.encode(), table), [b"1"])


ENVIRONMENT = "env_" + "0" * 26


@pytest.fixture
def tables() -> Iterator[None]:
    connections[REGION].close()  # an earlier test's may be due
    with connections[REGION].cursor() as cursor:
        cursor.execute(f'CREATE SCHEMA "{ENVIRONMENT}"')
        for number in range(5):
            cursor.execute(f'CREATE TABLE "{ENVIRONMENT}"."t{number}" ()')
    yield
    with connections[REGION].cursor() as cursor:
        cursor.execute(f'DROP SCHEMA "{ENVIRONMENT}" CASCADE')


@pytest.mark.usefixtures("tables")
def test_connection_that_saw_many_tables_is_replaced_after_the_request(settings: Any) -> None:
    """A backend keeps what it knows of each table for ever: 10,000 environments would fill the server's memory."""
    settings.TABLES_PER_CONNECTION = 3
    wrapper, first = connections[REGION], _backend()
    for _ in range(4):
        for table in range(3):
            _ask_for(table)
        wrapper.close_if_unusable_or_obsolete()  # as at the end of each request
    assert _backend() == first  # the same ones again cost nothing
    with transaction.atomic(using=REGION):
        _ask_for(3)
        _ask_for(4)
        assert _backend() == first
    wrapper.close_if_unusable_or_obsolete()
    assert _backend() != first
    second = _backend()
    _ask_for(4)
    wrapper.close_if_unusable_or_obsolete()
    assert _backend() == second


@pytest.mark.usefixtures("tables")
def test_tables_that_a_cursor_meets_count_too(settings: Any) -> None:
    settings.TABLES_PER_CONNECTION = 3
    first = _backend()
    with row_access.row_access(), connections[REGION].cursor() as cursor:
        for table in range(4):
            cursor.execute(f'SELECT FROM "{ENVIRONMENT}"."t{table}"')
    connections[REGION].close_if_unusable_or_obsolete()
    assert _backend() != first


def test_errors_are_djangos_with_psycopgs_as_the_cause() -> None:
    with pytest.raises(ProgrammingError) as caught:
        prepared.run(REGION, b"SELECT nothing FROM platform.numbers", [])
    assert isinstance(caught.value.__cause__, psycopg.errors.UndefinedColumn)
    put(1)
    assert all_numbers() == [1]  # the connection is as good as before


def test_an_error_inside_a_transaction_leaves_its_savepoint_usable() -> None:
    with transaction.atomic(using=REGION):
        put(1)
        with pytest.raises(Exception, match="duplicate key"), transaction.atomic(using=REGION):
            put(1)
        put(2)
    assert all_numbers() == [1, 2]


def test_a_read_on_a_connection_that_died_is_answered_by_a_new_one() -> None:
    for n in (1, 2, 3):
        put(n)
    terminate_own_backend()
    assert prepared.retry_if_lost(connections[REGION], b"SELECT count(*) FROM platform.numbers", []) == [(b"3",)]


def test_a_write_on_a_connection_that_died_fails_once_and_is_not_repeated() -> None:
    terminate_own_backend()
    with pytest.raises(OperationalError):
        put(1)
    put(2)
    assert all_numbers() == [2]


def test_a_read_inside_a_transaction_is_not_repeated_on_another_connection() -> None:
    @transaction.atomic(using=REGION)
    def put_and_read() -> None:
        put(1)
        terminate_own_backend()
        prepared.retry_if_lost(connections[REGION], b"SELECT count(*) FROM platform.numbers", [])

    with pytest.raises(OperationalError):
        put_and_read()
    assert all_numbers() == []


def test_a_runaway_statement_is_cancelled_and_the_connection_lives() -> None:
    with transaction.atomic(using=REGION):
        prepared.run(REGION, b"SET LOCAL statement_timeout = 50", [])
        with pytest.raises(OperationalError) as caught, transaction.atomic(using=REGION):
            prepared.run(REGION, b"SELECT pg_sleep(5)", [])
        assert getattr(caught.value.__cause__, "sqlstate", None) == "57014"
        assert prepared.run(REGION, b"SELECT 1", []) == [(b"1",)]
    assert prepared.run(REGION, b"SHOW statement_timeout", []) == [(b"5s",)]


def test_a_broken_transaction_takes_no_further_statement() -> None:
    @transaction.atomic(using=REGION)
    def break_and_put() -> None:
        put(1)
        transaction.set_rollback(True, using=REGION)
        put(2)

    with pytest.raises(transaction.TransactionManagementError):
        break_and_put()
    assert all_numbers() == []


TENANT_TABLE = '"env_01k6zzzzzzzzzzzzzzzzzzzzzz"."tasks"'
STRANGERS = [
    "SELECT * FROM {}",
    "DELETE FROM {}",
    "WITH x AS (SELECT 1 FROM {}) SELECT * FROM x",
    "TRUNCATE {}",
    "UPDATE env_01k6zzzzzzzzzzzzzzzzzzzzzz.tasks SET title = 'x'",
]


@pytest.mark.parametrize("text", [text.format(TENANT_TABLE) for text in STRANGERS])
def test_sql_over_tenant_tables_is_refused_at_the_cursor(text: str) -> None:
    with pytest.raises(row_access.RowsClosed), connections[REGION].cursor() as cursor:
        cursor.execute(text)
    with row_access.row_access(), pytest.raises(ProgrammingError), connections[REGION].cursor() as cursor:
        cursor.execute(text)  # gets as far as PostgreSQL, which has no such table


@pytest.mark.parametrize(
    "statement",
    [
        sql.SQL("SELECT * FROM {}").format(sql.Identifier("env_01k6zzzzzzzzzzzzzzzzzzzzzz", "tasks")),
        sql.SQL("DELETE FROM {} WHERE id = {}").format(
            sql.Identifier("env_01k6zzzzzzzzzzzzzzzzzzzzzz", "tasks"), sql.Literal("x")
        ),
        STRANGERS[0].format(TENANT_TABLE).encode(),
    ],
)
def test_sql_put_together_of_pieces_or_sent_as_bytes_is_refused_too(statement: object) -> None:
    with pytest.raises(row_access.RowsClosed), connections[REGION].cursor() as cursor:
        cursor.execute(statement)  # type: ignore[arg-type]


def test_schemas_are_created_and_dropped_without_row_access() -> None:
    with connections[REGION].cursor() as cursor:
        cursor.execute('CREATE SCHEMA "env_01k6zzzzzzzzzzzzzzzzzzzzzz"')
        cursor.execute(f"CREATE TABLE {TENANT_TABLE} (id text)")
        cursor.execute('DROP SCHEMA "env_01k6zzzzzzzzzzzzzzzzzzzzzz" CASCADE')


def note(n: int) -> libpq.Statement:
    return b"INSERT INTO platform.numbers VALUES ($1::bigint) RETURNING n", [b"%d" % n]


def test_statements_in_one_trip_commit_and_fail_each_by_itself() -> None:
    twice, broken = [note(n) for n in (1, 2, 1, 3)], (b"SELECT 1 / $1::int", [b"0"])
    outcomes = prepared.run_each(connections[REGION], [*twice, broken, note(4)])
    assert [outcomes[n] for n in (0, 1, 3, 5)] == [[(b"1",)], [(b"2",)], [(b"3",)], [(b"4",)]]
    assert [type(outcomes[n]) for n in (2, 4)] == [IntegrityError, DataError]
    assert seen_by_another() == 4


def test_failed_commit_affects_only_its_own_statement() -> None:
    with connections[REGION].cursor() as cursor:
        cursor.execute(
            "ALTER TABLE platform.numbers ADD of bigint REFERENCES platform.numbers DEFERRABLE INITIALLY DEFERRED"
        )

    def referring(n: int, of: int) -> libpq.Statement:
        return b"INSERT INTO platform.numbers VALUES ($1::bigint, $2::bigint) RETURNING n", [b"%d" % n, b"%d" % of]

    for _ in range(2):  # the second time they are prepared
        outcomes = prepared.run_each(
            connections[REGION], [note(1), referring(2, 99), note(3), referring(4, 98), referring(5, 1)]
        )
        assert [type(each) for each in outcomes] == [list, IntegrityError, list, IntegrityError, list]
        assert [outcomes[n] for n in (0, 2, 4)] == [[(b"1",)], [(b"3",)], [(b"5",)]]
        assert all_numbers() == [1, 3, 5]
        prepared.run(REGION, b"DELETE FROM platform.numbers", [])


def test_a_trip_prepares_its_statements_and_survives_their_disappearance() -> None:
    assert prepared.run_each(connections[REGION], [note(1), note(2)]) == [[(b"1",)], [(b"2",)]]
    assert len(prepared_names()) == 1
    with connections[REGION].cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
    assert prepared.run_each(connections[REGION], [note(3), note(4)]) == [[(b"3",)], [(b"4",)]]
    assert prepared.run_each(connections[REGION], [note(5)]) == [[(b"5",)]]
    assert len(prepared_names()) == 1
    assert all_numbers() == [1, 2, 3, 4, 5]


def test_a_trip_without_prepared_statements(settings: Any) -> None:
    settings.PREPARED_STATEMENTS = False
    assert prepared.run_each(connections[REGION], [note(1), note(2)]) == [[(b"1",)], [(b"2",)]]
    assert prepared_names() == set()


def test_a_trip_with_more_than_the_socket_takes_at_once() -> None:
    long = b"x" * 3_000_000
    echo: libpq.Statement = (b"SELECT $1::text, length($1::text)", [long])
    assert prepared.run_each(connections[REGION], [echo] * 4) == [[(long, b"3000000")]] * 4


def test_a_trip_whose_connection_dies_says_so_and_the_next_has_another() -> None:
    fatal: libpq.Statement = (b"SELECT pg_terminate_backend(pg_backend_pid())", [])
    with pytest.raises(OperationalError):
        prepared.run_each(connections[REGION], [note(1), fatal, note(2)])
    assert prepared.run_each(connections[REGION], [note(3)]) == [[(b"3",)]]
    assert all_numbers() == [1, 3]


def test_a_trip_is_no_part_of_a_transaction() -> None:
    with pytest.raises(RuntimeError, match="transaction"), transaction.atomic(using=REGION):
        prepared.run_each(connections[REGION], [note(1)])
    assert all_numbers() == []
