"""The configuration plan that is being applied to an environment (`platform_site.config.apply`): until it ends, only
the plan changes the environment's settings in the control database."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from django.db.models import Case, F, Value, When
from django.db.models.functions import Now

from projects.directory.locks import lock_environment
from projects.errors import ApplyInProgress
from projects.models import Environment

_ours: Final[ContextVar[str | None]] = ContextVar("applying_plan", default=None)


@contextmanager
def as_plan(plan_id: str) -> Generator[None]:
    token = _ours.set(plan_id)
    try:
        yield
    finally:
        _ours.reset(token)


def require_settled(environment_id: str) -> None:
    """Raise ApplyInProgress while another plan is applied."""
    applying = Environment.objects.filter(pk=environment_id, applying_plan__isnull=False)
    if applying.exclude(applying_plan=_ours.get()).exists():
        raise ApplyInProgress


def begin(environment_id: str, plan_id: str) -> None:
    """Record that the plan is applied from this transaction's commit on. Raises NoSuchEnvironment, ApplyInProgress."""
    status = Environment.Status
    if lock_environment(environment_id).applying_plan is not None:
        raise ApplyInProgress
    Environment.objects.filter(pk=environment_id).update(
        applying_plan=plan_id,
        applying_since=Now(),
        status=Case(When(status=status.READY, then=Value(status.MIGRATING)), default=F("status")),
    )


def lock(environment_id: str, plan_id: str) -> bool:
    """Whether the plan is still being applied, locked until the control transaction ends."""
    applied = Environment.objects.live().filter(pk=environment_id, applying_plan=plan_id)
    return applied.select_for_update(no_key=True, of=("self",)).first() is not None


def end(environment_id: str, plan_id: str) -> None:
    status = Environment.Status
    Environment.objects.filter(pk=environment_id, applying_plan=plan_id).update(
        applying_plan=None,
        applying_since=None,
        status=Case(When(status=status.MIGRATING, then=Value(status.READY)), default=F("status")),
    )
