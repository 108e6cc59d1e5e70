"""Writes entries: a thread per database of a web process, a batch per second. During an outage the batch waits. A lost
connection may write a batch twice; a killed process loses a second."""

import logging
import re
import threading
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from django.conf import settings
from django.db import (
    DEFAULT_DB_ALIAS,
    Error,
    IntegrityError,
    InterfaceError,
    OperationalError,
    connections,
    transaction,
)

from platform_site.identity.plans import plan_limits
from platform_site.request_log import names, partitions
from platform_site.request_log.recording import MAX_TALLIES, Entry, Queue, queues

EVERY_SECONDS: Final = 1.0
BATCH: Final = 5_000

_COPY: Final = """
COPY request_log_entry (at, keep_days, environment_id, request_id, method, route, table_name, function_name, status,
     code, field_codes, duration_ms, caller_kind, caller_id) FROM STDIN
"""
_ADD_OMITTED: Final = """
INSERT INTO request_log_omitted AS o (environment_id, minute, requests)
SELECT * FROM unnest(%s::text[], %s::timestamptz[], %s::bigint[]) AS n (environment_id, minute, requests) ORDER BY 1, 2
    ON CONFLICT (environment_id, minute) DO UPDATE SET requests = o.requests + excluded.requests
"""
_NULL: Final = "\\N"
_VARIABLE: Final = re.compile(r"<(?:\w+:)?(\w+)>")

logger = logging.getLogger("platform.request_log")


class Writer(threading.Thread):
    def __init__(self, using: str, queue: Queue) -> None:
        super().__init__(name=f"request-log-{using}", daemon=True)
        self._using, self._queue = using, queue
        self._batch: list[Entry] = []
        self._omitted: Counter[tuple[str, datetime]] = Counter()
        self._stopped = threading.Event()
        self._is_failing = False

    def run(self) -> None:
        while not self._stopped.wait(EVERY_SECONDS):
            self.write()
        self.write()
        with suppress(Error):
            connections[self._using].close()

    def write(self) -> None:
        try:
            self._take()
            while self._batch or self._omitted:
                self._write_batch()
                self._take()
            self._is_failing = False
        except (OperationalError, InterfaceError) as error:
            self._log_failure(error)
        except Exception:
            minute = datetime.now(UTC).replace(second=0, microsecond=0)
            for entry in self._batch:
                if entry.environment is not None:
                    self._count_omitted(entry.environment.environment_id, minute, 1)
            self._batch = []
            logger.exception("entries of the request log were lost", extra={"database": self._using})

    def stop(self) -> None:
        self._stopped.set()

    def _take(self) -> None:
        tallies, self._queue.tallies = self._queue.tallies, {}
        minute = datetime.now(UTC).replace(second=0, microsecond=0)
        for environment_id, tally in tallies.items():
            if tally.omitted and environment_id is not None:
                self._count_omitted(environment_id, minute, tally.omitted)
        waiting = self._queue.waiting
        while waiting and len(self._batch) < BATCH:
            self._batch.append(waiting.popleft())

    def _write_batch(self) -> None:
        try:
            self._write()
        except IntegrityError:  # no partition for these days
            partitions.create(self._using)
            self._write()
        self._batch = []
        self._omitted.clear()

    def _write(self) -> None:
        connection = connections[self._using]
        with transaction.atomic(using=self._using), connection.cursor() as cursor:
            known = names.without_unknown(self._using, self._batch)
            if known:
                with connection.wrap_database_errors, cursor.copy(_COPY) as copy:
                    copy.write("".join([line_of(entry) for entry in known]))
            if self._omitted:
                keys, counts = [*self._omitted], [*self._omitted.values()]
                environment_ids, minutes = zip(*keys, strict=True)
                cursor.execute(_ADD_OMITTED, [[*environment_ids], [*minutes], counts])

    def _count_omitted(self, environment_id: str, minute: datetime, requests: int) -> None:
        if len(self._omitted) < MAX_TALLIES or (environment_id, minute) in self._omitted:
            self._omitted[environment_id, minute] += requests

    def _log_failure(self, error: Exception) -> None:
        if not self._is_failing:
            logger.warning(
                "the request log waits for its database", extra={"database": self._using, "why": type(error).__name__}
            )
        self._is_failing = True
        with suppress(Error):
            connections[self._using].close()


def line_of(entry: Entry) -> str:
    """For `_COPY`. Only routes need escaping; psycopg's adaptation costs three times as much."""
    if (environment := entry.environment) is None:
        keep_days, environment_id = partitions.WITHOUT_ENVIRONMENT_KEEP_DAYS, _NULL
    else:
        keep_days, environment_id = plan_limits(environment.plan).request_log_days, environment.environment_id
    at, codes = datetime.fromtimestamp(entry.at, UTC), ",".join(entry.field_codes)
    return (
        f"{at}\t{keep_days}\t{environment_id}\t{entry.request_id}\t{entry.method}\t{template_of(entry.route)}"
        f"\t{entry.table or _NULL}\t{entry.function or _NULL}\t{entry.status}\t{entry.code or _NULL}\t{{{codes}}}"
        f"\t{entry.duration_ms}\t{entry.caller_kind or _NULL}\t{entry.caller_id or _NULL}\n"
    )


@lru_cache(maxsize=1024)
def template_of(route: str) -> str:
    """`v1/rows/<str:table>` as `/v1/rows/{table}`."""
    template = ("/" + _VARIABLE.sub(r"{\1}", route))[:200] if route else "(unknown)"
    return template.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


def create_writers() -> list[Writer]:
    """This process records requests from now on."""
    queues.update({using: Queue() for using in (DEFAULT_DB_ALIAS, *settings.REGION_DATABASES)})
    return [Writer(using, queue) for using, queue in queues.items()]
