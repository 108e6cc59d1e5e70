"""Who is to be told after a commit: a worker for queued runs, the webhooks' dispatcher for a run's event.

`webhooks` is this app's sibling and not imported: the event is told by the signal `run_finished`.
"""

from typing import Final

from platform_site.background.debounce import Wakeups
from platform_site.identity.signals import run_finished

after_commit: Final = Wakeups("function-wakeups", "functions.tasks.work").after_commit


def tell(using: str) -> None:
    """A run's event stands in the outbox."""
    run_finished.send(sender=None, using=using)
