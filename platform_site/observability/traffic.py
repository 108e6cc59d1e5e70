"""Writes request counts from the counters of `/metrics` to the control database."""

import contextlib
import logging
import threading
from typing import Any, Final

import orjson
from django.db import Error, connection

from platform_site.observability import metrics
from platform_site.postgres import sql_files
from platform_site.redis import rate_limits

EVERY_SECONDS: Final = 10.0
_SQL: Final = sql_files.load(__file__)

logger = logging.getLogger("platform.figures")


class Reporter(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="figures", daemon=True)
        self._written: dict[tuple[str, str], metrics.EndpointCounts] = {}
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(EVERY_SECONDS):
            self._try()
        self._try()
        connection.close()

    def stop(self) -> None:
        self._stopped.set()

    def _try(self) -> None:
        try:
            self.write()
        except Error as error:
            # Only the console uses these metrics: the next attempt writes them.
            logger.warning("metrics were not written: %s", type(error).__name__)
            with contextlib.suppress(Error):
                connection.close()
        except Exception:
            logger.exception("metrics were not written")

    def write(self) -> int:
        """Returns the number of requests since the last call; raises DatabaseError and loses nothing."""
        current = metrics.own_counts()
        rows = [row for key, counts in current.items() if (row := self._row(key, counts)) is not None]
        callers = rate_limits.limited_callers()
        try:
            with connection.cursor() as cursor:
                if rows:
                    cursor.execute(_SQL["add_endpoints"], {"rows": orjson.dumps(rows).decode()})
                if callers:
                    named = [{"caller_id": caller, "requests": count} for caller, count in callers.items()]
                    cursor.execute(_SQL["add_callers"], {"rows": orjson.dumps(named).decode()})
        except Error:
            rate_limits.record_limited(callers)
            raise
        self._written = current
        return sum(row["requests"] for row in rows)

    def _row(self, key: tuple[str, str], counts: metrics.EndpointCounts) -> dict[str, Any] | None:
        statuses, buckets = counts
        before_statuses, before_buckets = self._written.get(key, ({}, []))
        new = {status: count - before_statuses.get(status, 0) for status, count in statuses.items()}
        total = sum(new.values())
        if not total:
            return None
        before_buckets = before_buckets or [0] * len(buckets)
        return {
            "method": key[0],
            "route": key[1][:200],
            "requests": total,
            "client_errors": sum(count for status, count in new.items() if 400 <= status < 500),
            "server_errors": sum(count for status, count in new.items() if status >= 500),
            "rate_limited": new.get(429, 0),
            "buckets": [count - before for count, before in zip(buckets, before_buckets, strict=True)],
        }
