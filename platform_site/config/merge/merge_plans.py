from collections.abc import Mapping
from typing import Any

from platform_site.config import comparison, stored_plans, submitted
from platform_site.config.comparison import Plan
from platform_site.config.merge import merging
from platform_site.config.merge.merging import Merge
from platform_site.config.models import StoredPlan
from platform_site.config.parts import checks
from platform_site.config.parts.changes import PlanChanges
from platform_site.http import exact_json
from platform_site.http.errors import FieldError, ValidationFailed
from platform_site.identity.callers import Caller, EnvironmentRef


def compare(environment: EnvironmentRef, merge: Merge, author: Caller) -> Plan:
    document = merge.document
    has_conflict = any(conflict.path.startswith("schema") for conflict in merge.conflicts)
    if has_conflict:
        document = {**document, "schema": merge.now["schema"]}  # the merged one may not be valid yet
    wanted = submitted.check(environment, document)
    # Merged filters may need merged columns. They are checked once the conflicts are resolved.
    plan = comparison.compare(environment, merge.now, wanted, author, checks_webhooks=not has_conflict)
    plan.warnings += merge.warnings
    return plan


def resolve_conflicts(
    environment: EnvironmentRef,
    source: EnvironmentRef,
    stored: StoredPlan,
    choices: Mapping[str, Any],
    author: Caller,
) -> None:
    """Complete a plan by decisions about conflicts. Raises ValidationFailed with the remaining ones."""
    include, decided = stored.merge["include"], {**stored.merge["resolve"], **choices}
    merge = merging.merge(environment, source, include=include, resolve=decided)
    if merge.conflicts:
        raise ValidationFailed(
            "The merge has conflicts. For each, set `ours`, `theirs` or a value in `resolve`.",
            fields=[FieldError("resolve", "unresolved", each.path) for each in merge.conflicts[: submitted.MAX_ERRORS]],
        )
    plan = compare(environment, merge, author)
    stored.document_text = exact_json.dumps(merge.document)
    stored.changes, stored.confirm = stored_plans.changes_as_json(plan), plan.confirm
    stored.merge = merge.stored
    checks.check(PlanChanges(environment, stored))
    stored.save(using=environment.cluster, update_fields=["document_text", "changes", "confirm", "merge"])
