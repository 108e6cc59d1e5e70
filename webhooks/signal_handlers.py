from collections.abc import Iterator, Mapping
from typing import Any

from accounts.audit import Actor
from platform_site.background.periodic import after_commit
from platform_site.http.errors import FieldError
from platform_site.identity import signals
from platform_site.identity.callers import Caller, EnvironmentRef
from projects import control_events
from projects.models import Environment
from rows.migrate.old_names import OldNames
from rows.outbox import subscriptions
from rows.outbox.models import record
from rows.schema.model import Schema
from webhooks import notify as webhook_notify
from webhooks.delivery.queue import wait_for_claims
from webhooks.models import Webhook
from webhooks.subscriptions import deletion, schema_check
from webhooks.subscriptions import service as webhook_service
from webhooks.subscriptions.schema_check import Selection


def connect() -> None:
    signals.row_written.connect(notify_of_event, dispatch_uid="webhooks.notify_of_event")
    signals.schema_migrated.connect(record_migration_event, dispatch_uid="webhooks.record_migration_event")
    signals.names_changing.connect(warn_of_old_names, dispatch_uid="webhooks.warn_of_old_names")
    signals.schema_changing.connect(warn_of_invalid_filters, dispatch_uid="webhooks.warn_of_invalid_filters")
    signals.run_finished.connect(notify_of_event, dispatch_uid="webhooks.notify_of_run")
    signals.user_created.connect(record_user_event, dispatch_uid="webhooks.record_user_event")
    signals.environment_ready.connect(record_environment_event, dispatch_uid="webhooks.record_environment_event")
    signals.environment_branched.connect(follow_branch, dispatch_uid="webhooks.follow_branch")
    signals.environment_reset.connect(follow_reset, dispatch_uid="webhooks.follow_reset")
    signals.environment_deleting.connect(close_environment, dispatch_uid="webhooks.close_environment")
    signals.environment_deleted.connect(delete_environment, dispatch_uid="webhooks.delete_environment")


def notify_of_event(*, using: str, is_due: bool = True, **_: Any) -> None:
    if is_due:
        webhook_notify.after_commit(using)


def record_migration_event(*, environment: EnvironmentRef, version: int, using: str, **_: Any) -> None:
    """Record a `schema.migrated` event, if a webhook subscribes to it. It only contains the version: creating webhooks
    does not permit reading the schema."""
    if subscriptions.is_wanted("schema.migrated", environment.environment_id, using):
        record(
            "schema.migrated",
            {"version": version},
            using=using,
            environment_id=environment.environment_id,
            schema_version=version,
        )
        webhook_notify.after_commit(using)


def warn_of_old_names(
    *,
    environment: EnvironmentRef,
    old_names: OldNames,
    actor: Caller | Actor | None,
    beside: Mapping[str, Any],
    **_: Any,
) -> list[FieldError]:
    found = []
    for at, selection in _planned(environment, actor, beside):
        for index, pattern in enumerate(selection.events):
            if (table := old_names.in_pattern(pattern)) is not None:
                found.append(old_names.warning(f"{at}.events.{index}", table))
        for table, column in old_names.in_filter(selection.filter, selection.events):
            found.append(old_names.warning(f"{at}.filter", table, column))
        for table, names in (selection.columns or {}).items():
            if table in old_names.tables:
                found.append(old_names.warning(f"{at}.columns.{table}", table))
            for index, column in enumerate(names):
                if column in old_names.columns.get(table, {}):
                    found.append(old_names.warning(f"{at}.columns.{table}.{index}", table, column))
    return found


def warn_of_invalid_filters(
    *,
    environment: EnvironmentRef,
    old: Schema,
    new: Schema,
    actor: Caller | Actor | None,
    beside: Mapping[str, Any],
    **_: Any,
) -> list[FieldError]:
    planned = _planned(environment, actor, beside)
    narrowed = [(at, selection) for at, selection in planned if selection.filter or selection.columns]
    if not narrowed:
        return []
    before, after = schema_check.compiled(environment, old), schema_check.compiled(environment, new)
    return [
        FieldError(f"{at}.{each.field}", "invalid", f"The change makes this invalid. {each.message}")
        for at, selection in narrowed
        for each in schema_check.errors_caused(before, after, selection)
    ]


def _planned(
    environment: EnvironmentRef, actor: Caller | Actor | None, beside: Mapping[str, Any]
) -> Iterator[tuple[str, Selection]]:
    """The path and selection of each webhook, as the configuration `beside` makes it, if `actor` may read them."""
    if isinstance(actor, Caller) and not actor.may("webhooks:read"):
        return
    for webhook in Webhook.objects.of(environment).order_by("id"):
        name, changes = webhook.pk, {}
        if "webhooks" in beside:
            name = webhook.name or webhook.pk
            changes = beside["webhooks"].get(name)
            if changes is None:  # the configuration removes it
                continue
        selected = [changes.get(each, getattr(webhook, each)) for each in ("events", "filter", "columns")]
        yield f"webhooks.{name}", Selection(*selected)


def record_user_event(*, user_id: str, pool_id: str | None, **_: Any) -> None:
    """Record `auth.user.created` in the transaction that creates the user. It only contains the id: creating webhooks
    does not permit reading emails."""
    if pool_id is not None:
        control_events.record("auth.user.created", {"user_id": user_id}, environment_id=pool_id)
        webhook_notify.after_control_commit(pool_id)


def record_environment_event(*, environment: EnvironmentRef, **_: Any) -> None:
    """Record `environment.ready` of a branch for its source: the branch's webhooks are disabled copies."""
    branch = Environment.objects.filter(pk=environment.environment_id, parent__isnull=False).first()
    if branch is not None and branch.parent_id is not None:
        data = {"environment_id": branch.pk, "name": branch.name, "project_id": branch.project_id}
        control_events.record("environment.ready", data, environment_id=branch.parent_id)
        webhook_notify.after_control_commit(branch.parent_id)


def follow_branch(*, source: EnvironmentRef, target: EnvironmentRef, **_: Any) -> None:
    webhook_service.copy_webhooks(source, target)


def follow_reset(*, source: EnvironmentRef, target: EnvironmentRef, using: str, **_: Any) -> None:
    subscriptions.lock(target.environment_id, using)
    marked = deletion.mark_deleted(target.environment_id, using)
    webhook_service.copy_webhooks(source, target)
    after_commit(f"claims of {target.environment_id}", wait_for_claims, using, *marked, using=using, committed=using)


def close_environment(*, environment_id: str, cluster: str, **_: Any) -> None:
    # If the region is unavailable, its deliveries are not claimed, and `delete_environment` marks the webhooks later.
    after_commit(f"the webhooks of {environment_id}", deletion.close, environment_id, cluster, using=cluster)


def delete_environment(*, environment_id: str, cluster: str, **_: Any) -> None:
    deletion.start(environment_id, cluster)
