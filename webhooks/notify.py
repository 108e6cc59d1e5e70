"""Who tells a worker that there is something to deliver, after a commit."""

from typing import Final

from platform_site.background import dispatch
from platform_site.background.debounce import Wakeups

_wakeups: Final = Wakeups("webhook-wakeups", "webhooks.tasks.dispatch")
after_commit = _wakeups.after_commit
wake = _wakeups.wake


def after_control_commit(environment_id: str) -> None:
    """Let a worker carry over what the control database's transaction at hand tells the environment."""
    dispatch.send("webhooks.tasks.carry_over_control_events", environment_id)
