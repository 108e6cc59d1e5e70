"""Suspended projects, for workers: they skip environments of these, and what they skip stays due. Requests use
`EnvironmentRef.is_suspended`. docs/reference/projects.md, "Suspension"."""

import logging
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from django.db import Error, OperationalError, connections
from django.db.models import QuerySet
from django.db.models.functions import Now

from platform_site.redis import client as redis_client
from projects.models import Environment

FRESH_SECONDS: Final = 5.0
STALE_SECONDS: Final = 7 * 86_400
"""How long Redis keeps the last answer, for processes that start during an outage of the control database."""
MAX_WAIT_SECONDS: Final = 5.0

log = logging.getLogger("platform.projects")

SuspensionAnswer = TypeVar("SuspensionAnswer")


@dataclass(frozen=True, slots=True)
class _Known:
    environment_ids: list[str]
    asked_at: float


_known: Final[dict[str, _Known]] = {}


def suspended_in(cluster: str) -> list[str]:
    """Ids of the suspended environments of this database, at most FRESH_SECONDS old. During an outage of the control
    database the last answer (of this process, or in Redis); without any, none."""
    known, now = _known.get(cluster), time.monotonic()
    if known is not None and now - known.asked_at < FRESH_SECONDS:
        return known.environment_ids
    try:
        found = _in_thread(_ids(Environment.objects.suspended(), cluster))
        redis_client.current().put({_name(cluster): ",".join(found).encode()}, STALE_SECONDS)
    except OperationalError:
        if known is not None:
            found = known.environment_ids
        else:  # what another process was answered
            trip = redis_client.round_trip()
            reply = trip.get(_name(cluster))
            trip.run()
            found = reply.value.decode().split(",") if reply.value else []
        now = time.monotonic()  # the wait may have taken FRESH_SECONDS: otherwise each call would wait again
    _known[cluster] = _Known(found, now)
    return found


def _name(cluster: str) -> str:
    return f"suspended:{cluster}"


def evict(cluster: str) -> None:
    _known.pop(cluster, None)


def suspended_or_recently_resumed(cluster: str, time_to_act: timedelta) -> list[str]:
    resumed = Environment.objects.filter(project__resumed_at__gt=Now() - time_to_act)
    return _in_thread(_ids(Environment.objects.suspended() | resumed, cluster))


def plans_of_active(environment_ids: Collection[str]) -> dict[str, str]:
    """The plans of those that are reachable and not suspended. Raises OperationalError."""
    active = Environment.objects.reachable().filter(pk__in=environment_ids, project__suspended_at=None)
    return dict(_in_thread(active.values_list("pk", "project__plan")))


def _ids(queryset: "QuerySet[Environment]", cluster: str) -> "QuerySet[Environment, str]":
    return queryset.filter(project__cluster=cluster).values_list("pk", flat=True)


def _in_thread(queryset: "QuerySet[Any, SuspensionAnswer]") -> list[SuspensionAnswer]:
    """The control database's answer, from a thread with its own connection, within MAX_WAIT_SECONDS: a region's worker
    keeps no connection to it. Raises OperationalError."""
    answers: list[list[SuspensionAnswer]] = []

    def ask() -> None:
        try:
            answers.append(list(queryset))
        except Error as error:
            log.warning("the suspended environments could not be read: %s", type(error).__name__)
        finally:
            connections.close_all()

    asking = threading.Thread(target=ask, name="suspensions", daemon=True)
    asking.start()
    asking.join(MAX_WAIT_SECONDS)
    if not answers:
        raise OperationalError("the control database does not say which environments are suspended")
    return answers[0]
