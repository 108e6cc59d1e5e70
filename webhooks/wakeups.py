"""Who tells a worker that there is something to deliver, after a commit. The task is imported when it is first sent."""

from typing import TYPE_CHECKING, Any, Final

from platform_site.api import nudges
from platform_site.api.wakeups import Wakeups

if TYPE_CHECKING:
    from celery import Task


def _dispatch() -> "Task[Any, Any]":
    from webhooks.tasks import dispatch

    return dispatch


_wakeups: Final = Wakeups("webhook-wakeups", _dispatch)
after_commit = _wakeups.after_commit
wake = _wakeups.wake


def after_control_commit(environment_id: str) -> None:
    """Let a worker carry over what the control database's transaction at hand tells the environment."""
    from webhooks.tasks import carry_over_control_events

    nudges.nudge(carry_over_control_events, environment_id)
