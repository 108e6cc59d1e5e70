"""`/healthz`: this process answers. `/readyz`: so does everything that it leans on, each by name.

`/healthz` touches nothing (the bridge answers it on the event loop, before Django, even while every thread waits): it
is for a balancer, which must not take every replica out because something they share is away. `/readyz` is for
monitors and roll-outs: 503 as soon as one dependency is not well, though the service keeps serving what it can (all
but sign-in limits without Redis, other regions without a region). It asks each dependency at once, each in a thread of
its own and each for at most LIMIT seconds; a check that hangs is not started a second time. Answers are kept for a
second, so that many probes cost as much as one.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import psycopg
import redis
from django.conf import settings
from django.db import connections
from django.http import HttpRequest, HttpResponse

from platform_site.api.metrics import reads_only
from platform_site.api.views import answer
from platform_site.postgres import replicas

LIMIT: Final = 2.0
"""Seconds that one dependency may take to answer."""
FRESH: Final = 1.0
"""Seconds that an answer is believed."""

Check = Callable[[], None]
"""Returns if all is well, raises if not."""


@dataclass
class _Dependency:
    """One dependency, its check, and what the last run of it said."""

    check: Check
    lock: threading.Lock = field(default_factory=threading.Lock)
    running: bool = False
    asked_at: float = -1e9
    done: threading.Event = field(default_factory=threading.Event)
    error: str | None = None

    def ask(self) -> threading.Event:
        """Start the check unless it runs or was just run; the event is set when there is an answer."""
        with self.lock:
            if not self.running and time.monotonic() - self.asked_at > FRESH:
                self.running, self.asked_at, self.done = True, time.monotonic(), threading.Event()
                threading.Thread(target=self._run, args=(self.done,), daemon=True, name="readiness").start()
            return self.done

    def _run(self, done: threading.Event) -> None:
        error = None
        try:
            self.check()
        except Exception as raised:  # whatever it is, the dependency is not ready; its text may name hosts and users
            error = type(raised).__name__
        with self.lock:
            self.running, self.error = False, error
        done.set()


_dependencies: Final[dict[str, _Dependency]] = {}


def register(name: str, check: Check) -> None:
    """Let `/readyz` report `name`. `check` may take LIMIT seconds and raises if the dependency is not well."""
    _dependencies[name] = _Dependency(check)


def _ask_database(alias: str) -> None:
    """A connection of its own, opened as every other one (certificates, which of several hosts): `ok` means that
    requests get one."""
    with psycopg.connect(**connections[alias].get_connection_params(), autocommit=True) as connection:
        connection.execute("SELECT 1")


def _ask_redis() -> None:
    with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=1, socket_connect_timeout=1) as client:
        client.set("readyz", b"", ex=1)  # one that only answers reads is of no use to us


def register_own() -> None:
    """The dependencies that the kernel itself knows. Called at start."""
    register("control", lambda: _ask_database("default"))
    for region in settings.REGION_DATABASES:
        register(region, lambda region=region: _ask_database(region))  # type: ignore[misc]
    register("redis", _ask_redis)


def state() -> Mapping[str, str]:
    """For each dependency `ok`, `slow` (no answer within LIMIT) or `down`. Takes at most LIMIT seconds."""
    waiting = {name: one.ask() for name, one in _dependencies.items()}
    deadline = time.monotonic() + LIMIT
    found: dict[str, str] = {}
    for name, event in waiting.items():
        answered = event.wait(max(0.0, deadline - time.monotonic()))
        found[name] = "slow" if not answered else "ok" if _dependencies[name].error is None else "down"
    return found


def readyz(request: HttpRequest) -> HttpResponse:
    """`{"status": "ready" | "unavailable", "dependencies": {name: "ok" | "slow" | "down"}}`, 200 or 503.

    Where there are read replicas also `"replicas": {name: {"state", "lag_seconds"}}`. They decide nothing: their
    primaries answer in their place.
    """
    reads_only(request)
    found = state()
    headers = {"Cache-Control": "no-store"}
    facts: dict[str, object] = {"dependencies": found}
    if settings.REPLICAS:
        facts["replicas"] = replicas.states()
    if all(one == "ok" for one in found.values()):
        return answer({"status": "ready", **facts}, 200, headers)
    return answer({"status": "unavailable", **facts}, 503, headers | {"Retry-After": "1"})


def healthz(request: HttpRequest) -> HttpResponse:
    """`{"status": "ok"}`. Behind the bridge this view is not reached; it serves other servers and the tests."""
    reads_only(request)
    return answer({"status": "ok"}, headers={"Cache-Control": "no-store"})
