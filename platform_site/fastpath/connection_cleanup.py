"""Cleans up a thread's database connections once per request. Django's receivers look up each database and cache at the
start and end of each request (25 µs). Only for the server; tests, commands and workers keep Django's signals."""

import threading
from typing import Any

from django import db
from django.conf import settings
from django.core import cache, signals
from django.core.handlers.base import reset_urlconf
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created


class _Opened(threading.local):
    def __init__(self) -> None:
        self.connections: dict[str, BaseDatabaseWrapper] = {}


_opened = _Opened()


def disconnect_django_signals() -> None:
    if not settings.FASTPATH:
        return
    signals.request_started.disconnect(db.reset_queries)
    signals.request_started.disconnect(db.close_old_connections)
    signals.request_finished.disconnect(db.close_old_connections)
    signals.request_finished.disconnect(cache.close_caches)  # the platform's caches have nothing to close
    signals.request_finished.disconnect(reset_urlconf)  # there is one URLconf, and each request sets it
    connection_created.connect(_remember, dispatch_uid="platform_site.fastpath.connection_cleanup")


def _remember(connection: BaseDatabaseWrapper, **_: Any) -> None:
    _opened.connections[connection.alias] = connection


def close_unusable_connections() -> None:
    for connection in _opened.connections.values():
        if connection.queries_log:
            connection.queries_log.clear()  # filled under DEBUG alone
        connection.close_if_unusable_or_obsolete()
