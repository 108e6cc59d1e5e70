from functools import partial
from typing import Final

from platform_site.background import dispatch
from platform_site.background.debounce import Debouncer

_wakeups: Final = Debouncer("webhook-wakeups", partial(dispatch.send_now, "webhooks.tasks.dispatch"))
after_commit = _wakeups.after_commit
wake = _wakeups.wake


def after_control_commit(environment_id: str) -> None:
    dispatch.send("webhooks.tasks.move_control_events", environment_id)
