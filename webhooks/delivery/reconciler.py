"""Applies a change of a webhook to its deliveries, in interruptible batches; claims check the webhook itself from the
change's commit on. In this order: `drop_before` (older waiting ones are dropped), `recover_from` (failed ones become
pending), disabled (pending ones become held) or enabled (held ones become pending, in order, with all attempts)."""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from django.db import transaction

from platform_site.background.skip_scan import UNCLAIMED, first_of_each
from platform_site.postgres import sql_files, statements

BATCH: Final = 1000
REQUEST_BATCH: Final = 200
"""Deliveries that the request itself updates: about 20 ms."""
SECONDS: Final = 5.0
"""A periodic run stops after this time."""
MAX_ATTEMPTS: Final = 1000
"""Of one delivery, over all schedules. The number is a smallint: an overflow would fail all claims of the region."""

SQL: Final = sql_files.load(
    __file__,
    unclaimed=UNCLAIMED,
    holding=first_of_each("holding", "held", "sequence"),
    waiting=first_of_each("waiting", "pending", "next_attempt_at"),
)


@dataclass(frozen=True, slots=True)
class Step:
    changed: int
    """Deliveries."""
    is_last: bool


def reconcile(using: str, *, batch: int = BATCH, seconds: float = SECONDS) -> int:
    """Returns how many deliveries it changed."""
    waiting = deque(statements.column(using, SQL["webhooks_to_reconcile"]))
    changed, end = 0, time.monotonic() + seconds
    while waiting and time.monotonic() < end:
        webhook_id = waiting.popleft()
        step = reconcile_webhook(using, webhook_id, batch=batch)
        changed += step.changed
        if not step.is_last:
            waiting.append(webhook_id)
    return changed


def reconcile_webhook(using: str, webhook_id: str, *, batch: int) -> Step:
    """Does nothing if the webhook is locked or deleted."""
    parameters: dict[str, Any] = {"webhook": webhook_id, "batch": batch, "most": MAX_ATTEMPTS}
    with transaction.atomic(using=using):
        found = statements.dicts(using, SQL["state"], parameters)
        if not found:
            return Step(0, is_last=True)
        [webhook] = found
        parameters |= webhook
        if webhook["drop_before"] is not None:
            return _drop(using, parameters)
        if webhook["recover_from"] is not None:
            return _recover(using, parameters)
        if webhook["enabled"]:
            changed = statements.value(using, SQL["release"], parameters)
        else:
            changed = statements.execute(using, SQL["hold"], parameters)
        return Step(changed, is_last=changed < batch)


def _drop(using: str, parameters: dict[str, Any]) -> Step:
    changed = statements.execute(using, SQL["drop"], parameters)
    if changed == parameters["batch"]:
        return Step(changed, is_last=False)
    is_over = statements.execute(using, SQL["end_dropping"], parameters) > 0
    return Step(changed, is_last=not is_over)  # another process drops the rest


def _recover(using: str, parameters: dict[str, Any]) -> Step:
    examined, reached, changed = statements.row(using, SQL["recover"], parameters)
    if examined >= parameters["batch"]:
        statements.execute(using, SQL["advance_recovery"], parameters | {"reached": reached})
    else:
        statements.execute(using, SQL["end_recovering"], parameters)
    return Step(changed, is_last=False)
