from typing import Literal


def first_of_each(name: str, status: Literal["pending", "held"], order: str) -> str:
    """A skip scan, past large backlogs: the CTE `name (webhook_id, first)` has each webhook with a delivery in that
    status, and its minimum `order`. Ordering by both makes the planner use the partial index."""
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
"""No live worker holds the delivery `d`."""
