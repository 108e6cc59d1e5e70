"""The connections of a thread, looked after once a request instead of four times.

Django's own receivers walk through every database and cache that settings name, at the start and at the end of each
request, and look each up for the thread at hand: 25 µs for a request that uses none of them (docs/performance.md).
Here a thread notes what it opens, and after each answer looks at that. What is done to a connection is Django's own
`close_if_unusable_or_obsolete`: closed if it failed or is older than CONN_MAX_AGE, else asked for its health again when
the next request uses it. The server calls this (`platform_site.server.bridge`); tests, commands and workers keep
Django's receivers.
"""

import threading
from typing import Any

from django import db
from django.core import cache, signals
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
    signals.request_finished.disconnect(cache.close_caches)  # none of ours has anything to close
    connection_created.connect(_remember, dispatch_uid="platform_site.postgres.upkeep")
    signals.request_finished.connect(look_after, dispatch_uid="platform_site.postgres.upkeep")


def give_back() -> None:
    """Undo `take_over`, for tests."""
    signals.request_finished.disconnect(look_after, dispatch_uid="platform_site.postgres.upkeep")
    connection_created.disconnect(_remember, dispatch_uid="platform_site.postgres.upkeep")
    signals.request_started.connect(db.reset_queries)
    signals.request_started.connect(db.close_old_connections)
    signals.request_finished.connect(db.close_old_connections)
    signals.request_finished.connect(cache.close_caches)


def _remember(connection: BaseDatabaseWrapper, **_: Any) -> None:
    _opened.connections[connection.alias] = connection


def look_after(**_: Any) -> None:
    """Receiver of `request_finished`: see the module."""
    for connection in _opened.connections.values():
        if connection.queries_log:
            connection.queries_log.clear()  # filled under DEBUG alone
        connection.close_if_unusable_or_obsolete()
