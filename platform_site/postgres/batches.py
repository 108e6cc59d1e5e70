"""Changes many rows in batches, each in a transaction of its own, so that locks are held briefly."""

import math
from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet

from platform_site.postgres import statements


def execute_in_batches(
    using: str, statement: str, parameters: Mapping[str, Any], *, batch: int, most: float = math.inf
) -> int:
    """Repeat a statement, which changes about `batch` rows (its parameter), until it changes fewer than that, or `most`
    rows are changed. Returns how many."""
    changed = 0
    while changed < most:
        in_batch = statements.execute(using, statement, {**parameters, "batch": batch})
        changed += in_batch
        if in_batch < batch:
            break
    return changed


def delete_in_batches(rows: QuerySet[Any], batch: int = 1000) -> int:
    """Delete these rows, with Django's cascades. Returns how many rows, cascaded ones too."""
    deleted = 0
    while keys := list(rows.values_list("pk", flat=True)[:batch]):
        # By key alone: with the conditions, the planner might choose an index of theirs, and scan all rows each time.
        deleted += rows.model._base_manager.using(rows.db).filter(pk__in=keys).delete()[0]
    return deleted
