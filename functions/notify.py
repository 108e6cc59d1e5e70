"""Notifications after a commit: a worker for queued runs, and the signal `run_finished` for webhooks."""

from functools import partial
from typing import Final

from platform_site.background import dispatch
from platform_site.background.debounce import Debouncer
from platform_site.identity.signals import run_finished

after_commit: Final = Debouncer("function-wakeups", partial(dispatch.send_now, "functions.tasks.work")).after_commit


def notify(using: str) -> None:
    run_finished.send(sender=None, using=using)
