"""A skip scan: SQL that steps from one webhook with pending work to the next, for all statements on the queue.

What waits is found webhook by webhook, in leaps through a partial index, never by reading it in one line: the backlog
of one webhook, slow, paused or disabled, would lie before all others', and every look would walk over it. A leap costs
the same however much there is at the webhook that it leaps over.
"""

from typing import Literal


def first_of_each(name: str, status: Literal["pending", "held"], order: str) -> str:
    """A recursive CTE, to stand behind `WITH RECURSIVE`: `name (webhook_id, first)` has a row for each webhook with a
    delivery in that status, and the least of its column `order`.

    There has to be an index on (webhook_id, `order`) of deliveries in that status alone. The order by both is what
    keeps the planner to it, whatever the statistics of a moment say.
    """
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
