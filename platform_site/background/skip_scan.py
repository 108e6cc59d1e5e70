"""A skip scan: SQL that steps from one webhook with pending work to the next, for all statements on the queue. Reading
pending deliveries in the order of an index would walk over the whole backlog of a slow, paused or disabled webhook each
time. Instead, the statement jumps from webhook to webhook in a partial index; a jump costs the same for any backlog."""

from typing import Literal


def first_of_each(name: str, status: Literal["pending", "held"], order: str) -> str:
    """A recursive CTE, for use after `WITH RECURSIVE`: `name (webhook_id, first)` has a row for each webhook with a
    delivery in that status, and the minimum of its column `order`. It needs a partial index on (webhook_id, `order`)
    for that status. Ordering by both makes the planner use it, whatever the statistics."""
    return f"""{name} AS (
    (SELECT d.webhook_id, d.{order} AS first FROM platform.webhooks_delivery d
      WHERE d.status = '{status}' ORDER BY d.webhook_id, d.{order} LIMIT 1)
    UNION ALL
    SELECT following.webhook_id, following.first
      FROM {name}, LATERAL (
           SELECT d.webhook_id, d.{order} AS first FROM platform.webhooks_delivery d
            WHERE d.status = '{status}' AND d.webhook_id > {name}.webhook_id
            ORDER BY d.webhook_id, d.{order} LIMIT 1) AS following
)"""  # noqa: S608 - constants


UNCLAIMED = "(d.claimed_until IS NULL OR d.claimed_until < now())"
"""No worker holds the delivery `d` now; one that held it has died or stalled."""
