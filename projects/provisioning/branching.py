"""Preview branches: copies of another environment of the project, in one REPEATABLE READ transaction in which higher
layers receive `environment_branched`. Small ones exist before the response; large ones are `creating` until a worker
has filled them, and a periodic job completes interrupted ones. docs/adr/0003-preview-branches.md."""

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Literal

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, DatabaseError, Error, transaction
from django.db.models.functions import Now

from accounts.audit import Actor
from platform_site.background import advisory_locks, long_tasks
from platform_site.background.advisory_locks import LockSpace
from platform_site.concurrency.fair_semaphore import Full
from platform_site.identity import signals
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.postgres import sqlstates, statements, transaction_settings
from projects.directory import environment_cache
from projects.directory import locks as environment_locks
from projects.errors import NoSuchEnvironment, TablesInUse
from projects.models import Environment, Project
from projects.provisioning import failpoints, schemas
from projects.provisioning.schemas import SchemaBusy

log = logging.getLogger("platform.projects")

Data = Literal["none", "full"]

_ATTEMPTS: Final = 4
"""A concurrent schema change or lock on a copied row restarts the copy."""
_WAIT: Final = 0.1


class SourceGone(Exception):
    pass


class BranchDeleted(Exception):
    pass


def ref_of(project: Project, environment: Environment) -> EnvironmentRef:
    return EnvironmentRef(
        environment_id=environment.pk,
        environment_name=environment.name,
        project_id=project.pk,
        region=project.region,
        cluster=project.cluster,
        plan=project.plan,
        pool_id=environment.pool_id,
        allowed_origins=tuple(environment.allowed_origins),
        is_suspended=project.suspended_at is not None,
    )


def is_small(source: EnvironmentRef) -> bool:
    return schemas.size_of(source.environment_id, source.cluster) <= settings.BRANCH_AT_ONCE_BYTES


def require_both(source: EnvironmentRef, target: EnvironmentRef) -> None:
    """Raise SourceGone or BranchDeleted. Called by receivers of `environment_branched` once they lock the source's
    tables (a later deletion cannot drop those), and between long steps."""
    wanted = [source.environment_id, target.environment_id]
    live = set(Environment.objects.live().filter(pk__in=wanted).values_list("pk", flat=True))
    if target.environment_id not in live:
        raise BranchDeleted
    if source.environment_id not in live:
        raise SourceGone


# Deleting a user changes the rows that name it in every environment of its pool (`user_deleted`). A branch that is
# being created is not yet one of these, and its snapshot may still have such rows. So the deletion of a user holds the
# pool's lock in share mode until its commit; making a branch visible takes it exclusively, and either copies after
# that, or finds the users that were deleted while it copied (`since`).


def block_new_branches(pool_id: str) -> None:
    advisory_locks.lock_shared(DEFAULT_DB_ALIAS, LockSpace.POOL, pool_id)


def block_user_deletion(pool_id: str) -> None:
    advisory_locks.lock(DEFAULT_DB_ALIAS, LockSpace.POOL, pool_id)


def copy(source: EnvironmentRef, target: EnvironmentRef, data: Data, *, patient: bool = False) -> None:
    """`patient`: without time limits. Raises SchemaBusy, SourceGone, BranchDeleted, DatabaseError."""
    using = target.cluster

    def once() -> None:
        schemas.claim_schema(target.environment_id, using)
        schemas.create_schema(target.environment_id, using)
        signals.environment_branched.send(sender=Environment, source=source, target=target, data=data, using=using)
        require_both(source, target)
        failpoints.reach("branch.before_region_commit")

    _in_one_snapshot(once, using, sqlstates.INTERFERED, patient=patient)
    failpoints.reach("branch.after_region_commit")


def reset(
    source: EnvironmentRef, target: EnvironmentRef, data: Data, *, actor: Caller | Actor | None, patient: bool = False
) -> None:
    """`actor` writes an audit entry. Raises SourceGone, BranchDeleted, TablesInUse, DatabaseError."""
    using = target.cluster

    def once() -> None:
        signals.environment_reset.send(
            sender=Environment, source=source, target=target, data=data, actor=actor, using=using
        )
        require_both(source, target)
        failpoints.reach("reset.before_region_commit")

    # A conflict: a name that was taken after the snapshot.
    _in_one_snapshot(once, using, sqlstates.INTERFERED | sqlstates.CONFLICTS, patient=patient)
    failpoints.reach("reset.after_region_commit")


def _in_one_snapshot(once: Callable[[], None], using: str, repeatable: frozenset[str], *, patient: bool) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with transaction.atomic(using=using):
                statements.execute(using, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                if patient:
                    transaction_settings.lift_limits(using)
                return once()
        except (DatabaseError, TablesInUse) as error:
            is_repeatable = isinstance(error, TablesInUse) or sqlstates.sqlstate(error) in repeatable
            if attempt == _ATTEMPTS or not is_repeatable:
                raise
        time.sleep(_WAIT * attempt)


def unfinished(after: str) -> list[str]:
    creating = Environment.objects.live().filter(status=Environment.Status.CREATING, pk__gt=after).branches()
    return list(creating.order_by("pk").values_list("pk", flat=True)[:100])


def finish(environment_id: str) -> bool:
    """True if the branch is settled, successfully or not; False if another process works on it, the region is
    unavailable, or too many branches are being filled."""
    branch = (
        Environment.objects.live()
        .select_related("project", "parent")
        .filter(pk=environment_id, status=Environment.Status.CREATING)
        .first()
    )
    if branch is None:
        return False
    try:
        with long_tasks.slots.slot(branch.project_id, wait=0):
            return _finish_reset(branch) if branch.filled_from == Environment.Filling.RESET else _finish_copy(branch)
    except (Full, SchemaBusy, BranchDeleted, TablesInUse):
        return False
    except SourceGone:
        return fail(environment_id, "The source environment was deleted.")
    except Error as error:  # includes InterfaceError of a broken connection, which is no DatabaseError
        state = sqlstates.sqlstate(error)
        if state is None or state in sqlstates.INTERFERED or state in sqlstates.BUSY or state.startswith("08"):
            log.warning("branch %s is still to be filled: %s", environment_id, state or type(error).__name__)
            return False
        log.exception("branch %s could not be filled", environment_id)
        return fail(environment_id, f"PostgreSQL refused the copy (SQLSTATE {state}).")
    except Exception:
        log.exception("branch %s could not be filled", environment_id)
        return fail(environment_id, "The copy failed because of an internal error.")


def _finish_copy(branch: Environment) -> bool:
    cluster = branch.project.cluster
    if schemas.has_schema(branch.pk, cluster):
        return settle(branch.pk)  # the schema and its contents were committed together
    with transaction.atomic(using=cluster):
        schemas.claim_schema(branch.pk, cluster)  # SchemaBusy: it is being filled
    if schemas.has_schema(branch.pk, cluster):  # committed between the check and the claim
        return False
    if branch.filled_from == Environment.Filling.ARCHIVE:
        return fail(branch.pk, "The restore was interrupted.")
    if _has_timed_out(branch, "created_at"):
        return fail(branch.pk, "The copy timed out.")
    source, target = _source_and_target(branch)
    copy(source, target, "full", patient=True)
    return settle(branch.pk)


def _finish_reset(branch: Environment) -> bool:
    if _has_timed_out(branch, "applying_since"):
        return fail(branch.pk, "The copy timed out.")
    source, target = _source_and_target(branch)
    # The branch is unreachable until it is settled, so a reset may run twice.
    with schemas.alone(branch.pk, branch.project.cluster):
        if not Environment.objects.filter(pk=branch.pk, status=Environment.Status.CREATING).exists():
            return False  # another process was faster
        reset(source, target, "full", actor=None, patient=True)
        return settle(branch.pk)


def _has_timed_out(branch: Environment, since: str) -> bool:
    timeout = timedelta(seconds=settings.BRANCH_GIVE_UP_SECONDS)
    return Environment.objects.filter(pk=branch.pk, **{f"{since}__lt": Now() - timeout}).exists()


def _source_and_target(branch: Environment) -> tuple[EnvironmentRef, EnvironmentRef]:
    if branch.parent is None or branch.parent.status == Environment.Status.DELETING:
        raise SourceGone
    return ref_of(branch.project, branch.parent), ref_of(branch.project, branch)


def settle(environment_id: str) -> bool:
    """Mark a filled branch as ready. False if it was deleted or is settled."""
    with transaction.atomic():
        try:
            branch = environment_locks.lock_environment(environment_id, status=Environment.Status.CREATING)
        except NoSuchEnvironment:
            return False
        block_user_deletion(branch.pool_id)
        branch.status = Environment.Status.READY
        since, branch.applying_since = branch.applying_since or branch.created_at, None
        branch.save(update_fields=["status", "applying_since"])
        # Its absence may be cached.
        environment_cache.evict_environment(branch)
        ref = ref_of(branch.project, branch)
        signals.environment_ready.send(sender=Environment, environment=ref, since=since)
        failpoints.reach("branch.before_ready")
    return True


def fail(environment_id: str, reason: str) -> bool:
    """Mark a branch as failed, with the reason. One that was to be reset is ready again, unchanged."""
    creating = Environment.objects.filter(pk=environment_id, status=Environment.Status.CREATING)
    branch = creating.select_related("project").filter(filled_from=Environment.Filling.RESET).first()
    if branch is not None:
        environment_cache.evict_environment(branch)
        return bool(creating.update(status=Environment.Status.READY, status_reason=reason, applying_since=None))
    return bool(creating.update(status=Environment.Status.FAILED, status_reason=reason))
