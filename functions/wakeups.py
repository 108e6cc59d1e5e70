"""Who is to be told after a commit: a worker for queued runs, the webhooks' dispatcher for a run's event.

`webhooks` is this app's sibling and not imported: the event is told by the signal `run_finished`.
"""

from functools import partial

from django.db import transaction

from platform_site.api import nudges
from platform_site.api.signals import run_finished


def after_commit(using: str) -> None:
    """Nudge a worker for the queued runs of the region once the transaction at hand has committed."""
    transaction.on_commit(partial(_nudge, using), using=using)


def _nudge(using: str) -> None:
    from functions.tasks import work

    nudges.send_now(work, using)


def tell(using: str) -> None:
    """A run's event stands in the outbox."""
    run_finished.send(sender=None, using=using)
