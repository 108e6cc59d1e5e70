from datetime import datetime
from typing import Any

from accounts.audit import Actor
from platform_site.concurrency import server_hints
from platform_site.identity import signals
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.postgres import replicas
from projects.directory.environments import environment_ref
from projects.models import Environment
from projects.provisioning import branching
from rows.changes import feed, notifications
from rows.models import CurrentVersion, EventInterest, PendingUserReferences, SchemaVersion, WatchedTable
from rows.query import schema_cache
from rows.transfer import branch_copy, branch_reset
from rows.write.references import dangling_references, pending_user_deletions


def connect() -> None:
    signals.environment_ready.connect(apply_user_deletions_since, dispatch_uid="rows.apply_user_deletions_since")
    signals.environment_branched.connect(branch_copy.follow_branch, dispatch_uid="rows.follow_branch")
    signals.environment_reset.connect(branch_reset.follow_reset, dispatch_uid="rows.follow_reset")
    signals.environment_deleted.connect(remove_versions, dispatch_uid="rows.remove_versions")
    signals.schema_migrated.connect(read_nothing_older, dispatch_uid="rows.read_nothing_older")
    signals.row_written.connect(notifications.after_commit, dispatch_uid="rows.notify_feeds")
    server_hints.on_shutdown.append(feed.end_all)
    signals.user_deleted.connect(delete_user_references, dispatch_uid="rows.delete_user_references")


def remove_versions(*, environment_id: str, cluster: str, **_: Any) -> None:
    """Delete versions, idempotently; events go in batches (`webhooks.subscriptions.deletion`)."""
    for model in (CurrentVersion, SchemaVersion, EventInterest, PendingUserReferences, WatchedTable):
        model._default_manager.using(cluster).filter(environment_id=environment_id).delete()
    schema_cache.evict(environment_id)


def read_nothing_older(*, environment: EnvironmentRef, **_: Any) -> None:
    """Replicas must have this change before they answer."""
    replicas.raise_mark_on_commit(environment.cluster, environment.environment_id)


def delete_user_references(*, user_id: str, pool_id: str | None, actor: Caller | Actor, **_: Any) -> None:
    """Apply the policies of user columns in all environments of the pool, in the transaction that deletes the user,
    which fails if a region is unavailable."""
    if pool_id is None:
        return
    branching.block_new_branches(pool_id)
    environments = Environment.objects.filter(pool_id=pool_id).values_list("pk", flat=True)
    refs = [ref for each in environments if (ref := environment_ref(each)) is not None]
    pending_user_deletions.delete_rows(refs, user_id, pool_id=pool_id, actor=actor)


def apply_user_deletions_since(*, environment: EnvironmentRef, since: datetime | None, **_: Any) -> None:
    """As above for users deleted while a branch was filled, before it becomes reachable."""
    if since is not None:
        dangling_references.remove(environment, since)
