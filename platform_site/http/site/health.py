"""`/healthz`: this process answers. `/readyz`: 503 only if it can serve no request (no control database or no region);
other failures make it `degraded`, because with 503 a load balancer would remove every host."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pkgutil import iter_modules
from typing import Any, Final

import psycopg
import redis
from django.apps import apps
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from django.http import HttpRequest, HttpResponse

from platform_site.http.errors import ValidationFailed
from platform_site.http.requests import read_parameters
from platform_site.http.views import respond
from platform_site.observability.metrics import reads_only
from platform_site.postgres import availability, replicas

LIMIT: Final = 2.0
"""Seconds for each check."""
WORKERS: Final = "workers"
CACHED_SECONDS: Final = 1.0
_SERVES: Final = ("ok", "read_only", "not_migrated")

Check = Callable[[], None]


class Limited(Exception):
    """Of a check: the dependency can be used, within limits. The message is its state."""


@dataclass
class _Dependency:
    check: Check
    lock: threading.Lock = field(default_factory=threading.Lock)
    started_at: float = 0.0
    state: "Future[str] | None" = None

    def start_check(self) -> "Future[str]":
        with self.lock:
            if self.state is None or (self.state.done() and time.monotonic() - self.started_at > CACHED_SECONDS):
                state: Future[str] = Future()
                threading.Thread(target=self._run, args=(state,), daemon=True, name="readiness").start()
                self.started_at, self.state = time.monotonic(), state
            return self.state

    def _run(self, state: "Future[str]") -> None:
        try:
            self.check()
        except Limited as limited:
            state.set_result(str(limited))
        except Exception:  # whatever it is, the dependency is not ready
            state.set_result("down")
        else:
            state.set_result("ok")


_dependencies: Final[dict[str, _Dependency]] = {}
_migrated: Final[set[str]] = set()
"""Databases that had all migrations of this version."""


def register(name: str, check: Check) -> None:
    _dependencies[name] = _Dependency(check)


def _check_database(alias: str) -> None:
    try:
        connection = psycopg.connect(**connections[alias].get_connection_params(), autocommit=True)
    except psycopg.Error as error:
        availability.watch(alias).log_failure(error)
        raise
    with connection:
        if connection.execute("SHOW transaction_read_only").fetchone() != ("off",):  # also "on" for a standby
            raise Limited("read_only")
        if alias not in _migrated:
            if not _has_migrations(connection):
                raise Limited("not_migrated")
            _migrated.add(alias)


def _has_migrations(connection: "psycopg.Connection[tuple[Any, ...]]") -> bool:
    """Whether those of this version are applied. The files are listed: loading the modules would take memory."""
    with suppress(psycopg.errors.UndefinedTable):
        applied = {*connection.execute("SELECT app, name FROM django_migrations")}
        for app in apps.get_app_configs():
            names = {module.name for module in iter_modules([f"{app.path}/migrations"])}
            if not {(app.label, name) for name in names} <= applied:
                return False
        return True
    return False


def _check_redis() -> None:
    with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=1, socket_connect_timeout=1) as client:
        client.set("readyz", b"", ex=1)  # reads alone do not show that Redis can be used


def register_own() -> None:
    register("control", partial(_check_database, DEFAULT_DB_ALIAS))
    for region in settings.REGION_DATABASES:
        register(region, partial(_check_database, region))
    register("redis", _check_redis)


def dependency_states() -> Mapping[str, str]:
    """By dependency `ok`, `read_only`, `not_migrated`, `slow` (no result within LIMIT) or `down`."""
    results = {name: one.start_check() for name, one in _dependencies.items()}
    wait(results.values(), LIMIT)
    return {name: state.result() if state.done() else "slow" for name, state in results.items()}


def readyz(request: HttpRequest) -> HttpResponse:
    """`?require=` names dependencies that must be ok. Replicas do not count, since primaries replace them."""
    reads_only(request)
    required = _required(request)
    found = dependency_states()
    facts: dict[str, object] = {"dependencies": found}
    if WORKERS in found:
        facts["workers"] = found[WORKERS]
    if settings.REPLICAS:
        facts["replicas"] = replicas.states()
    headers = {"Cache-Control": "no-store"}
    regions = [found[region] for region in settings.REGION_DATABASES if region in found]
    can_serve = found.get("control", "ok") in _SERVES and (not regions or any(one in _SERVES for one in regions))
    if not can_serve or any(found[name] != "ok" for name in required):
        return respond({"status": "unavailable", **facts}, 503, headers | {"Retry-After": "1"})
    is_ready = all(one == "ok" for one in found.values())
    return respond({"status": "ready" if is_ready else "degraded", **facts}, 200, headers)


def _required(request: HttpRequest) -> list[str]:
    given = read_parameters(request.META.get("QUERY_STRING", ""), frozenset({"require"})).get("require")
    if given is None:
        return []
    names = [*_dependencies] if given == "all" else given.split(",")
    if unknown := [name for name in names if name not in _dependencies]:
        known = ", ".join(_dependencies)
        message = f'"{unknown[0][:40]}" is not a dependency. Write all, or some of these with commas: {known}.'
        raise ValidationFailed.of("require", "unknown", message)
    return names


def healthz(request: HttpRequest) -> HttpResponse:
    reads_only(request)
    return respond({"status": "ok"}, headers={"Cache-Control": "no-store"})
