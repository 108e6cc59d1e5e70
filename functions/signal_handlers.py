from collections.abc import Mapping
from typing import Any

from django.db.models import F

from accounts.audit import Actor
from functions.deploy import branch_copy, service
from functions.deploy import deletion as function_deletion
from functions.models import Version
from functions.triggers import event_subscriptions, pending_events
from platform_site.http.errors import FieldError
from platform_site.identity import signals
from platform_site.identity.callers import Caller, EnvironmentRef
from rows.migrate.old_names import OldNames


def connect() -> None:
    signals.environment_branched.connect(branch_copy.copy_functions, dispatch_uid="functions.follow_branch")
    signals.environment_reset.connect(follow_reset, dispatch_uid="functions.follow_reset")
    signals.names_changing.connect(warn_of_old_names, dispatch_uid="functions.warn_of_old_names")
    signals.environment_deleted.connect(delete_environment, dispatch_uid="functions.delete_environment")


def follow_reset(*, source: EnvironmentRef, target: EnvironmentRef, using: str, **_: Any) -> None:
    service.lock_functions(target)
    function_deletion.start_all(using, target.environment_id)
    branch_copy.copy_functions(source=source, target=target)
    event_subscriptions.refresh(target.environment_id, using)


def delete_environment(*, environment_id: str, cluster: str, **_: Any) -> None:
    """Idempotent. `projects.provisioning.orphaned_rows` finds what a relay adds meanwhile."""
    function_deletion.start_all(cluster, environment_id)
    pending_events.delete_all(environment_id, cluster)


def warn_of_old_names(
    *,
    environment: EnvironmentRef,
    old_names: OldNames,
    actor: Caller | Actor | None,
    beside: Mapping[str, Any],
    **_: Any,
) -> list[FieldError]:
    """A warning for each event trigger with an old name, and each active source that seems to use one."""
    if isinstance(actor, Caller) and not actor.may("functions:read"):
        return []
    found = []
    active = Version.objects.using(environment.cluster).filter(
        function__environment_id=environment.environment_id, number=F("function__active_version")
    )
    for version in active.select_related("function").order_by("function__name").iterator(chunk_size=10):
        name = version.function.name
        item = beside["functions"].get(name) if "functions" in beside else {}
        if item is None:
            continue
        at, patterns = f"functions.{name}", item.get("on", version.function.events or [])
        for index, pattern in enumerate(patterns):
            if (table := old_names.in_pattern(pattern)) is not None:
                found.append(old_names.warning(f"{at}.on.{index}", table))
        for table, column in old_names.in_source(item.get("source", version.source), patterns):
            found.append(old_names.warning(f"{at}.source", table, column))
    return found
