"""Notifications after a commit: a worker for queued runs, the webhooks' dispatcher for a run's event.

`webhooks` is a sibling of this app and not imported: the signal `run_finished` announces the event.
"""

from functools import partial
from typing import Final

from platform_site.background import dispatch
from platform_site.background.debounce import Debouncer
from platform_site.identity.signals import run_finished

after_commit: Final = Debouncer("function-wakeups", partial(dispatch.send_now, "functions.tasks.work")).after_commit


def notify(using: str) -> None:
    """Announce that a run's event is in the outbox."""
    run_finished.send(sender=None, using=using)
