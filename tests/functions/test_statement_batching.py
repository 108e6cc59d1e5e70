"""One round trip for many threads: each statement runs once, and each thread gets its own result or failure."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest
from django.db import DataError, OperationalError, connections, transaction

from functions.runs.statement_batching import MAX_BATCH, StatementBatcher
from platform_site.http.errors import Unavailable
from platform_site.postgres.direct import own_connection
from platform_site.postgres.libpq import Row
from platform_site.postgres.sql_files import PreparedStatement, Value
from tests.support.service import wait_for

REGION = "us-east-1"
pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

NOTE = PreparedStatement("""
WITH kept AS (INSERT INTO platform.notes SELECT %(n)s::int, 100 / (%(divisor)s::int - 7) RETURNING n)
SELECT n, pg_backend_pid(), txid_current(), pg_current_wal_insert_lsn(), pg_advisory_xact_lock_shared(7) IS NULL,
       CASE WHEN %(is_asynchronous)s::boolean THEN set_config('synchronous_commit', 'off', true) END,
       CASE WHEN %(divisor)s::int <> 9 THEN %(mark)s::text ELSE %(mark)s::text || '!' END
  FROM kept
""")
"""Stores a number, fails for a second value of 7, answers for another one with 9, and waits while a session holds the
lock."""


@pytest.fixture(autouse=True)
def notes() -> Iterator[None]:
    with connections[REGION].cursor() as cursor:
        cursor.execute("CREATE TABLE platform.notes (n int PRIMARY KEY, quotient int)")
    yield
    connections[REGION].close()
    with connections[REGION].cursor() as cursor:
        cursor.execute("DROP TABLE platform.notes")


class Crowd:
    """Threads that run a `StatementBatcher`, of which the first is held up by a lock until `go`."""

    def __init__(self, together: StatementBatcher, prepare: Callable[[], object] = lambda: None) -> None:
        self.together, self.prepare = together, prepare
        self.threads = ThreadPoolExecutor(40)
        self._held = own_connection(REGION)
        self.holder = self._held.__enter__()
        with self.holder.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(7)")

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *_: object) -> None:
        self._held.__exit__(None, None, None)  # with the connection goes the lock
        self.threads.shutdown()

    def bring(self, n: int, divisor: int = 17) -> "Future[list[Row]]":
        return self.bring_values({"n": n, "divisor": divisor})

    def bring_values(self, parameters: Mapping[str, Value]) -> "Future[list[Row]]":
        def run() -> list[Row]:
            try:
                self.prepare()
                return self.together.run(REGION, parameters)
            finally:
                connections[REGION].close()

        return self.threads.submit(run)

    def wait_until(self, waiting: int) -> None:
        """Until the first waits for the lock and so many are queued behind it."""
        wait_for("the first", lambda: self.blocked(), 20)
        wait_for("the others", lambda: len(self.together._queues[REGION].waiting) == waiting, 20)

    def blocked(self) -> list[int]:
        with self.holder.cursor() as cursor:
            cursor.execute("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted")
            return [pid for (pid,) in cursor.fetchall()]

    def go(self) -> None:
        with self.holder.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(7)")


def kept() -> list[int]:
    with connections[REGION].cursor() as cursor:
        cursor.execute("SELECT n FROM platform.notes ORDER BY n")
        return [n for (n,) in cursor.fetchall()]


def test_who_comes_alone_goes_alone() -> None:
    together = StatementBatcher(NOTE, is_durable=False)
    for n in range(3):
        [(answer, *_)] = together.run(REGION, {"n": n, "divisor": 1})
        assert answer == b"%d" % n
    assert kept() == [0, 1, 2]


@pytest.mark.parametrize("is_durable", [False, True])
def test_who_comes_meanwhile_goes_in_one_trip_and_has_an_answer_of_his_own(is_durable: bool) -> None:
    with Crowd(StatementBatcher(NOTE, is_durable=is_durable)) as crowd:
        first = crowd.bring(0)
        crowd.wait_until(0)
        others = [crowd.bring(n) for n in range(1, MAX_BATCH + 4)]
        crowd.wait_until(MAX_BATCH + 3)
        crowd.go()
        answers = [each.result(30)[0] for each in (first, *others)]
    assert [int(n or 0) for n, *_ in answers] == list(range(MAX_BATCH + 4))
    assert kept() == list(range(MAX_BATCH + 4))
    backends = [backend for _, backend, *_ in answers[1:]]
    assert sorted(backends.count(each) for each in set(backends)) == [3, MAX_BATCH]
    assert len({transaction for _, _, transaction, *_ in answers}) == MAX_BATCH + 4, "each commits by itself"


def test_one_that_fails_fails_alone() -> None:
    with Crowd(StatementBatcher(NOTE, is_durable=True)) as crowd:
        first = crowd.bring(0)
        crowd.wait_until(0)
        others = [crowd.bring(n, divisor=7 if n % 3 == 0 else 8) for n in range(1, 10)]
        crowd.wait_until(9)
        crowd.go()
        assert first.result(30)[0][0] == b"0"
        for n, other in enumerate(others, 1):
            if n % 3 == 0:
                with pytest.raises(DataError, match="division by zero"):
                    other.result(30)
            else:
                assert other.result(30)[0][0] == b"%d" % n
    assert kept() == [0, 1, 2, 4, 5, 7, 8]


def test_a_connection_that_dies_takes_its_party_along_and_the_line_goes_on() -> None:
    together = StatementBatcher(NOTE, is_durable=False)
    with Crowd(together) as crowd:
        first = crowd.bring(0)
        crowd.wait_until(0)
        party = [crowd.bring(n) for n in range(1, 4)]
        crowd.wait_until(3)
        with crowd.holder.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", crowd.blocked())
        with pytest.raises(OperationalError):
            first.result(30)
        crowd.wait_until(0)  # the party has gone, and waits for the lock
        late = crowd.bring(4)
        crowd.wait_until(1)
        with crowd.holder.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", crowd.blocked())
        for each in party:
            with pytest.raises(OperationalError):
                each.result(30)
        crowd.go()
        assert late.result(30)[0][0] == b"4"
    assert kept() == [4]


def test_rows_of_other_statements_are_not_returned() -> None:
    with Crowd(StatementBatcher(NOTE, is_durable=False)) as crowd:
        first = crowd.bring(0)
        crowd.wait_until(0)
        others = [crowd.bring(n, divisor=9 if n == 2 else 8) for n in range(1, 4)]
        crowd.wait_until(3)
        crowd.go()
        assert first.result(30)[0][0] == b"0"
        with pytest.raises(RuntimeError, match="another one"):
            others[0].result(30)
        for each in others[1:]:
            with pytest.raises(OperationalError):
                each.result(30)


def test_internal_error_leaves_no_thread_waiting() -> None:
    together = StatementBatcher(NOTE, is_durable=False)
    with Crowd(together) as crowd:
        first = crowd.bring(0)
        crowd.wait_until(0)
        wrong = crowd.bring_values({"n": 1})
        crowd.wait_until(1)
        others = [crowd.bring(n) for n in range(2, 5)]
        crowd.wait_until(4)
        crowd.go()
        assert first.result(30)[0][0] == b"0"
        with pytest.raises(KeyError):
            wrong.result(30)
        for each in others:
            with pytest.raises(OperationalError):
                each.result(30)
        assert crowd.bring(5).result(30)[0][0] == b"5"
    assert kept() == [0, 5]


def test_a_full_connection_pool_is_503_for_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    together = StatementBatcher(NOTE, is_durable=False)
    with Crowd(together) as crowd:
        first = crowd.bring(1)
        crowd.wait_until(0)
        others = [crowd.bring(n) for n in (2, 3, 4)]
        crowd.wait_until(3)

        def refuse(*_: object) -> None:
            raise Unavailable

        monkeypatch.setattr(together, "_outcomes", refuse)
        crowd.go()
        assert len(first.result(20)) == 1
        assert {type(each.exception(20)) for each in others} == {Unavailable}


def test_a_durable_one_answers_when_all_of_its_party_is_on_disk() -> None:
    def as_in_production() -> None:
        with connections[REGION].cursor() as cursor:
            cursor.execute("SET synchronous_commit = on")  # what tests go without

    with Crowd(StatementBatcher(NOTE, is_durable=True), as_in_production) as crowd:
        first = crowd.bring(0)
        crowd.wait_until(0)
        others = [crowd.bring(n) for n in range(1, 6)]
        crowd.wait_until(5)
        crowd.go()
        written = [each.result(30)[0][3] or b"" for each in (first, *others)]
        with crowd.holder.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM unnest(%s::text[]) lsn WHERE lsn::pg_lsn > pg_current_wal_flush_lsn()",
                [[lsn.decode() for lsn in written]],
            )
            assert cursor.fetchone() == (0,)


def test_inside_a_transaction_it_goes_alone_and_is_a_part_of_it() -> None:
    together = StatementBatcher(NOTE, is_durable=False)
    with suppress(ZeroDivisionError), transaction.atomic(using=REGION):
        together.run(REGION, {"n": 1, "divisor": 1})
        assert kept() == [1]
        raise ZeroDivisionError
    assert kept() == []
