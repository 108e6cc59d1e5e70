"""Cleans up the database connections of a thread once per request instead of four times. Django's own receivers walk
through every database and cache that settings name, at the start and at the end of each request, and look each up for
the thread at hand: 25 µs for a request that uses none of them. Here a thread notes what it opens, and after each answer
looks at that. What is done to a connection is Django's own `close_if_unusable_or_obsolete`: closed if it failed or is
older than CONN_MAX_AGE, else asked for its health again when the next request uses it. The server does so itself after
each answer (`platform_site.server.application`), without Django's signals, which cost more than what they tell; tests,
commands and workers keep them."""

import threading
from typing import Any

from django import db
from django.core import cache, signals
from django.core.handlers.base import reset_urlconf
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created


class _Opened(threading.local):
    def __init__(self) -> None:
        self.connections: dict[str, BaseDatabaseWrapper] = {}


_opened = _Opened()


def take_over() -> None:
    """Put this in the place of Django's receivers in this process. Twice is once."""
    signals.request_started.disconnect(db.reset_queries)
    signals.request_started.disconnect(db.close_old_connections)
    signals.request_finished.disconnect(db.close_old_connections)
    signals.request_finished.disconnect(cache.close_caches)  # the platform's caches have nothing to close
    signals.request_finished.disconnect(reset_urlconf)  # there is one URLconf, and each request sets it
    connection_created.connect(_remember, dispatch_uid="platform_site.fastpath.connection_cleanup")


def give_back() -> None:
    """Undo `take_over`, for tests."""
    connection_created.disconnect(_remember, dispatch_uid="platform_site.fastpath.connection_cleanup")
    signals.request_started.connect(db.reset_queries)
    signals.request_started.connect(db.close_old_connections)
    signals.request_finished.connect(db.close_old_connections)
    signals.request_finished.connect(cache.close_caches)
    signals.request_finished.connect(reset_urlconf)


def _remember(connection: BaseDatabaseWrapper, **_: Any) -> None:
    _opened.connections[connection.alias] = connection


def watch_connection() -> None:
    """After an answer, in the thread that made it: see the module."""
    for connection in _opened.connections.values():
        if connection.queries_log:
            connection.queries_log.clear()  # filled under DEBUG alone
        connection.close_if_unusable_or_obsolete()
