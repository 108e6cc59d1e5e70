"""Applies a change of a webhook to its deliveries, in interruptible batches; claims check the webhook itself from the
change's commit on. In this order: `drop_before` (older waiting ones are dropped), `recover_from` (failed ones become
pending), disabled (pending ones become held) or enabled (held ones become pending, in order, with all attempts)."""

import time
from collections import deque
from typing import Any, Final

from django.db import transaction

from platform_site.postgres import sql_files, statements
from webhooks.delivery.queue import HOLDING, UNCLAIMED, WAITING

BATCH: Final = 1000
REQUEST_BATCH: Final = 200
"""Deliveries that the request itself updates: about 20 ms."""
SECONDS: Final = 5.0
"""A periodic run stops after this time."""
MAX_ATTEMPTS: Final = 1000
"""Of one delivery, over all schedules. The number is a smallint: an overflow would fail all claims of the region."""

SQL: Final = sql_files.load(__file__, unclaimed=UNCLAIMED, holding=HOLDING, waiting=WAITING)


def reconcile(using: str, *, batch: int = BATCH, seconds: float = SECONDS) -> int:
    """Returns how many deliveries it changed."""
    waiting = deque(statements.column(using, SQL["webhooks_to_reconcile"]))
    changed, end = 0, time.monotonic() + seconds
    while waiting and time.monotonic() < end:
        webhook_id = waiting.popleft()
        more, is_last = reconcile_webhook(using, webhook_id, batch=batch)
        changed += more
        if not is_last:
            waiting.append(webhook_id)
    return changed


def reconcile_webhook(using: str, webhook_id: str, *, batch: int) -> tuple[int, bool]:
    """Returns how many deliveries it changed, and whether that was all. Does nothing if the webhook is locked or
    deleted."""
    parameters: dict[str, Any] = {"webhook": webhook_id, "batch": batch, "most": MAX_ATTEMPTS}
    with transaction.atomic(using=using):
        found = statements.dicts(using, SQL["state"], parameters)
        if not found:
            return 0, True
        [webhook] = found
        parameters |= webhook
        if webhook["drop_before"] is not None:
            changed = statements.execute(using, SQL["drop"], parameters)
            # If the dropping cannot be ended, another process drops the rest.
            return changed, changed < batch and not statements.execute(using, SQL["end_dropping"], parameters)
        if webhook["recover_from"] is not None:
            examined, reached, changed = statements.row(using, SQL["recover"], parameters)
            following = "advance_recovery" if examined >= batch else "end_recovering"
            statements.execute(using, SQL[following], parameters | {"reached": reached})
            return changed, False
        if webhook["enabled"]:
            changed = statements.value(using, SQL["release"], parameters)
        else:
            changed = statements.execute(using, SQL["hold"], parameters)
        return changed, changed < batch
