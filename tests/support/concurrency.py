"""Waiting for conditions, and database sessions that wait for each other."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connections

from tests.projects.conftest import make_account as make_account
from tests.rows.conftest import Tracker
from tests.support.tenants import REGION


def waiting_for_locks(using: str) -> int:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # else a transaction sees what it saw before
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return int(cursor.fetchone()[0])


def at_once(*calls: Callable[[], int]) -> list[int]:
    def one(call: Callable[[], int]) -> int:
        try:
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return sorted(pool.map(one, calls))


@contextmanager
def another_session(tracker: Tracker) -> Iterator["psycopg.Connection[Any]"]:
    """A transaction beside the service's own, in the tables of the tracker."""
    facts = connections[REGION].get_connection_params()
    known = {key: facts[key] for key in ("dbname", "user", "password", "host", "port") if facts.get(key)}
    with psycopg.connect(**known, options=f'-c search_path="{tracker.environment_id}"') as other:
        yield other


def is_blocked() -> bool:
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with connections[REGION].cursor() as cursor:
        cursor.execute(waiting)
        return bool(cursor.rowcount)


def in_thread(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return error
    finally:
        connections.close_all()


def wait_until(true: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
