"""What `rows` does when an environment branches or goes, or a user goes: the floors below announce it, nobody here is
called by name."""

from datetime import datetime
from typing import Any

from accounts.audit import Actor
from platform_site.identity import signals
from platform_site.identity.callers import Caller, Place
from platform_site.postgres import replicas
from projects.directory.environments import place_of
from projects.models import Environment
from projects.provisioning import branching as branching_of_projects
from rows.models import CurrentVersion, DepartureDue, EventInterest, SchemaVersion
from rows.query import schema_cache
from rows.transfer import branch_copy
from rows.write import deleted_users, user_deletion


def connect() -> None:
    """Called once at start."""
    signals.environment_ready.connect(let_go_of_users_since, dispatch_uid="rows.let_go_of_users_since")
    signals.environment_branched.connect(branch_copy.follow_branch, dispatch_uid="rows.follow_branch")
    signals.environment_deleted.connect(remove_versions, dispatch_uid="rows.remove_versions")
    signals.schema_migrated.connect(read_nothing_older, dispatch_uid="rows.read_nothing_older")
    signals.user_deleted.connect(let_go_of_user, dispatch_uid="rows.let_go_of_user")


def remove_versions(*, environment_id: str, cluster: str, **_: Any) -> None:
    """Remove what is known of a schema that is gone. May run twice.

    Its events, which may be millions, go in the batches of `webhooks.signal_handlers`.
    """
    CurrentVersion.objects.using(cluster).filter(environment_id=environment_id).delete()
    SchemaVersion.objects.using(cluster).filter(environment_id=environment_id).delete()
    EventInterest.objects.using(cluster).filter(environment_id=environment_id).delete()
    DepartureDue.objects.using(cluster).filter(environment_id=environment_id).delete()
    schema_cache.forget(environment_id)


def read_nothing_older(*, place: Place, **_: Any) -> None:
    """No replica answers by the schema and the rules before this change, once it is acknowledged."""
    replicas.written(place.cluster, place.environment_id)


def let_go_of_user(*, user_id: str, pool_id: str | None, actor: Caller | Actor, **_: Any) -> None:
    """Apply the policies of user columns in every environment where this user could sign in: a preview branch has the
    users of its parent.

    Inside the transaction that deletes the user, so that a region which is away keeps it from being deleted.
    """
    if pool_id is None:
        return
    branching_of_projects.let_users_go(pool_id)
    environments = Environment.objects.filter(pool_id=pool_id).values_list("pk", flat=True)
    places = [place for each in environments if (place := place_of(each)) is not None]
    user_deletion.let_go(places, user_id, pool_id=pool_id, actor=actor)


def let_go_of_users_since(*, place: Place, since: datetime | None, **_: Any) -> None:
    """The same for users who were deleted while a branch was filled, before anybody can reach it."""
    if since is not None:
        deleted_users.let_go(place, since)
