"""A skip scan: SQL that jumps from webhook to webhook in a partial index, past large backlogs."""

from typing import Literal


def first_of_each(name: str, status: Literal["pending", "held"], order: str) -> str:
    """A recursive CTE `name (webhook_id, first)`: each webhook with a delivery in that status, and its minimum `order`.
    Needs a partial index on (webhook_id, `order`); ordering by both makes the planner use it."""
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
