"""A thread's connections are looked after at the end of a request, and only its own."""

import threading
from collections.abc import Iterator

import pytest
from django import db
from django.core import cache, signals
from django.core.handlers.base import reset_urlconf
from django.db import connection, connections
from django.db.backends.signals import connection_created

from platform_site.fastpath import connection_cleanup

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def taken_over(with_fastpath: None) -> Iterator[None]:
    connection_cleanup.disconnect_django_signals()
    connection_cleanup.disconnect_django_signals()
    try:
        yield
    finally:
        connection_created.disconnect(dispatch_uid="platform_site.fastpath.connection_cleanup")
        signals.request_started.connect(db.reset_queries)
        signals.request_started.connect(db.close_old_connections)
        signals.request_finished.connect(db.close_old_connections)
        signals.request_finished.connect(cache.close_caches)
        signals.request_finished.connect(reset_urlconf)


def in_a_thread(run: object) -> None:
    thread = threading.Thread(target=run)  # type: ignore[arg-type]
    thread.start()
    thread.join()


@pytest.mark.usefixtures("taken_over")
def test_failed_or_old_connection_is_closed_and_good_one_kept() -> None:
    found: list[bool] = []

    def requests() -> None:
        connection.ensure_connection()
        connection.close_at = None
        connection_cleanup.close_unusable_connections()
        found.append(connection.connection is not None)
        connection.close_at = 0
        connection_cleanup.close_unusable_connections()
        found.append(connection.connection is not None)
        connection.ensure_connection()
        connection.close_at = None
        connection.errors_occurred = True
        connection.connection.close()
        connection_cleanup.close_unusable_connections()
        found.append(connection.connection is not None)
        connections.close_all()

    in_a_thread(requests)
    assert found == [True, False, False]


@pytest.mark.usefixtures("taken_over")
def test_a_kept_connection_is_asked_for_its_health_once_in_each_request() -> None:
    found: list[bool] = []

    def requests() -> None:
        connection.ensure_connection()
        connection.close_at = None
        connection.health_check_done = True
        connection_cleanup.close_unusable_connections()
        found.append(connection.health_check_done)
        connections.close_all()

    in_a_thread(requests)
    assert found == [False]


@pytest.mark.usefixtures("taken_over")
def test_the_connections_of_another_thread_are_left_alone() -> None:
    ready, done = threading.Event(), threading.Event()
    found: list[bool] = []

    def other() -> None:
        connection.ensure_connection()
        connection.close_at = 0
        ready.set()
        done.wait(10)
        found.append(connection.connection is not None)
        connections.close_all()

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait(10)
    connection_cleanup.close_unusable_connections()
    done.set()
    thread.join()
    assert found == [True]
