"""Prometheus metrics over all processes of this machine, and `/metrics`. Each process has a memory-mapped file in
`PROMETHEUS_MULTIPROC_DIR`, which a scrape adds up; files of ended processes stay until `reset`. The directory must be
set before the library is imported, so all users import it from here."""

import atexit
import hmac
import ipaddress
import os
from bisect import bisect_left
from collections import Counter as Counts
from collections import defaultdict
from pathlib import Path
from typing import Final

import psutil
from django.conf import settings
from django.core.exceptions import DisallowedHost, ImproperlyConfigured
from django.http import HttpRequest, HttpResponse

if not os.environ.get("PROMETHEUS_MULTIPROC_DIR"):  # an empty value would mean the current directory
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(settings.DATA_DIR / "metrics")
_directory = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
try:
    _directory.mkdir(parents=True, exist_ok=True)
except OSError as error:
    raise ImproperlyConfigured(f"DATA_DIR cannot be used: {_directory}: {error.strerror}") from None

from platform_site.observability import metrics_files  # noqa: E402

metrics_files.use()

from prometheus_client import (  # noqa: E402
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead  # noqa: E402
from prometheus_client.registry import Collector  # noqa: E402

from platform_site.fastpath.batching import Batch  # noqa: E402
from platform_site.http.errors import MethodNotAllowed, NotFound  # noqa: E402

BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, float("inf"))
REQUESTS: Final = Counter("platform_requests", "Answered requests.", ["method", "route", "status"])
SECONDS: Final = Histogram(
    "platform_request_seconds", "Time from the front to the finished answer.", ["method", "route"], buckets=BOUNDS
)
RATE_LIMITED: Final = Counter("platform_rate_limited", "Requests answered 429.", ["route"])
DATABASE_ERRORS: Final = Counter("platform_database_errors", "Errors of PostgreSQL by SQLSTATE.", ["sqlstate"])
BREAKER_OPEN: Final = Gauge(
    "platform_redis_breaker_open", "Processes that have given up on Redis for the moment.", multiprocess_mode="livesum"
)
BREAKER_TRIPS: Final = Counter("platform_redis_breaker_trips", "How often a process gave up on Redis for a while.")
LOOP_STOPS: Final = Counter("platform_event_loop_stops", "How often an event loop stood still for more than 50 ms.")
REPLICA_LAG: Final = Gauge(
    "platform_replica_lag_seconds", "At most so far behind its primary.", ["replica"], multiprocess_mode="livemax"
)
REPLICA_READS: Final = Counter(
    "platform_replica_reads", "Statements that were tried on a replica, by what came of it.", ["replica", "outcome"]
)
CHANGE_STREAMS: Final = Gauge(
    "platform_change_streams", "Open streams of changes.", ["region"], multiprocess_mode="livesum"
)
CHANGE_MESSAGES: Final = Counter("platform_change_messages", "Messages about rows sent to streams.", ["region"])
CHANGE_LAG: Final = Gauge(
    "platform_change_lag_seconds",
    "Time from reading changes until all streams have their messages, in the slowest process.",
    ["region"],
    multiprocess_mode="livemax",
)
CHANGE_SLOW_READERS: Final = Counter(
    "platform_change_slow_readers", "Streams that were ended because their clients read too slowly.", ["region"]
)

_requests: Final[dict[tuple[str, str, int], Counter]] = {}
_seconds: Final[dict[tuple[str, str], Histogram]] = {}

EndpointCounts = tuple[dict[int, int], list[int]]
"""Responses by status, and by duration: a count for each of SECONDS, the last without a bound."""


def observe_request(method: str, route: str, status: int, seconds: float) -> None:
    """Count a response, batched (`fastpath.batching`): the library is ten times as fast for several at once."""
    response = (method, route, status, seconds)
    if not _pending.put(response):
        _count([response])


def _count(responses: list[tuple[str, str, int, float]]) -> None:
    """Caches the label children: looking them up costs more than counting."""
    durations: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)
    for method, route, status, seconds in responses:
        durations[method, route, status].append(seconds)
    for key, seconds_taken in durations.items():
        method, route, status = key
        counter = _requests.get(key)
        if counter is None:
            counter = _requests[key] = REQUESTS.labels(method, route, str(status))
        counter.inc(len(seconds_taken))
        timed = (method, route)
        histogram = _seconds.get(timed)
        if histogram is None:
            histogram = _seconds[timed] = SECONDS.labels(method, route)
        # As its `observe` for each of them. The names with an underscore are the library's, as in `own_counts`.
        histogram._sum.inc(sum(seconds_taken))
        for index, count in Counts(bisect_left(BOUNDS, seconds) for seconds in seconds_taken).items():
            histogram._buckets[index].inc(count)
        if status == 429:
            RATE_LIMITED.labels(route).inc(len(seconds_taken))


_pending: Final = Batch(_count, max_items=50_000)


def count_now() -> None:
    _pending.flush()


def own_counts() -> dict[tuple[str, str], EndpointCounts]:
    """By (method, route), read from the library's internals."""
    count_now()
    found: dict[tuple[str, str], EndpointCounts] = {}
    for (method, route, status), counter in list(_requests.items()):
        statuses, _ = found.setdefault((method, route), ({}, []))
        statuses[status] = int(counter._value.get())
    for key, histogram in list(_seconds.items()):
        if key in found:
            found[key][1].extend(int(bucket.get()) for bucket in histogram._buckets)
    return found


_has_file = False
collectors: Final[list[Collector]] = []


def open_metrics_file() -> None:
    global _has_file
    _has_file = True


@atexit.register
def _remove_own_files() -> None:
    if not _has_file:
        for file in _directory.glob(f"*_{os.getpid()}.db"):
            file.unlink(missing_ok=True)


def reset() -> None:
    for file in _directory.glob("*_*.db"):
        pid = file.stem.rpartition("_")[2]
        if not (pid.isdigit() and psutil.pid_exists(int(pid))):
            file.unlink(missing_ok=True)


def reads_only(request: HttpRequest) -> None:
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed(headers={"Allow": "GET, HEAD"})


def metrics(request: HttpRequest) -> HttpResponse:
    """`GET /metrics`, with METRICS_TOKEN; without one, for loopback outside production. Else 404."""
    reads_only(request)
    if not _may_read(request):
        raise NotFound("There is no such endpoint.")
    for file in _directory.glob("gauge_live*_*.db"):
        pid = int(file.stem.rpartition("_")[2])
        if not psutil.pid_exists(pid):
            mark_process_dead(pid, path=str(_directory))  # type: ignore[no-untyped-call]
    count_now()  # not those of other processes, at most a twentieth of a second old
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(_directory))  # type: ignore[no-untyped-call]
    for collector in collectors:
        registry.register(collector)
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def _may_read(request: HttpRequest) -> bool:
    token = settings.METRICS_TOKEN
    if token:
        given = request.META.get("HTTP_AUTHORIZATION", "")
        return hmac.compare_digest(given.encode("utf-8", "replace"), f"Bearer {token}".encode())
    if settings.PRODUCTION:
        return False
    try:
        request.get_host()  # of a page in a local browser it is the page's, even if its name resolves to this machine
        return ipaddress.ip_address(request.META.get("REMOTE_ADDR", "")).is_loopback
    except (DisallowedHost, ValueError):
        return False
