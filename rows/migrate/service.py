"""Service of an environment's schema: read, change, dry-run, revert. A change is one transaction of the region: tables,
version record, current version, and what receivers of `schema_migrated` write."""

import random
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from types import MappingProxyType
from typing import Any, Final, ParamSpec, TypeVar

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, transaction
from django.db import Error as DatabaseError

from accounts.audit import Actor
from platform_site.background import dispatch
from platform_site.background.periodic import log_failures
from platform_site.http.errors import Conflict, FieldError, QuotaExceeded, Unavailable, ValidationFailed
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import plan_limits
from platform_site.postgres import sqlstates, transaction_settings
from projects.directory import locks as environment_locks
from projects.errors import SchemaLost
from projects.models import Environment
from projects.provisioning import failpoints, schemas
from rows.migrate import apply, concurrent_unique_indexes, lint, lock_estimates, old_names, versions
from rows.migrate.apply import LockNotAvailable, Operation
from rows.migrate.computation_slots import in_slot
from rows.migrate.lock_estimates import TableLock
from rows.migrate.planning import planner
from rows.migrate.planning.plan import AddedUnique, Plan
from rows.migrate.versions import State
from rows.models import CurrentVersion
from rows.outbox import audit as audit_outbox
from rows.rules import rules
from rows.schema import model as schema_model
from rows.schema import parser
from rows.schema.model import MAX_ERRORS, InvalidDocument, Schema

P = ParamSpec("P")
T = TypeVar("T")
_FIRST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 1.0


class Unconfirmed(ValidationFailed):
    def __init__(self, operations: Collection[str]) -> None:
        self.operations = sorted(operations)
        super().__init__(
            "The change would lose data. To confirm, repeat it with these operations in `confirm`. If something was "
            "only renamed, add `renamed_from` to it instead.",
            fields=[FieldError("confirm", "unconfirmed", name) for name in self.operations],
        )


class VersionConflict(Conflict):
    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"The schema is now at version {version}. Read it again and repeat your change.")


class TablesBusy(Unavailable):
    message = "The tables are in use and the change could not begin. Nothing was changed; try again."


@dataclass(frozen=True, slots=True)
class Outcome:
    version: int
    operations: tuple[Operation, ...]
    changed: bool
    indexes_due: bool = False
    warnings: tuple[FieldError, ...] = ()
    locks: tuple[TableLock, ...] = ()


def read(raw: object) -> Schema:
    """Raises InvalidDocument."""
    return with_valid_rules(parser.parse(raw))


@in_slot
def read_in_slot(environment: EnvironmentRef, raw: object) -> Schema:
    """As `read`, for requests that may not be within another slot."""
    return read(raw)


def with_valid_rules(schema: Schema) -> Schema:
    if errors := rules.validate(schema):
        raise InvalidDocument(errors)
    return schema


def _existing_row_errors(environment: EnvironmentRef, schema: Schema) -> list[FieldError]:
    tables = {name: replace(table, rules={}, conditions={}, checks={}) for name, table in schema.tables.items()}
    try:
        plan = planner.plan(versions.current(environment).schema, replace(schema, tables=tables))
        if plan.depends_on_rows:
            apply.check_existing_rows(environment.cluster, environment.environment_id, plan)
    except InvalidDocument as error:
        return error.errors
    except apply.StatementTimeout:
        return []
    return []


@in_slot
def rehearse(
    environment: EnvironmentRef,
    raw: object,
    *,
    actor: Caller | Actor | None = None,
    expected: int | None = None,
    beside: Mapping[str, Any] = MappingProxyType({}),
) -> Outcome:
    """What `change` would do, without locks. `actor` limits the warnings, which are about functions and webhooks as
    `beside` makes them. Raises as `change`, except Unconfirmed."""
    planned = _planned(environment, raw, expected, actor)
    if planned.is_empty:
        return planned.unchanged
    operations = apply.rehearse(environment.cluster, environment.environment_id, planned.plan)
    warnings = (*planned.warnings, *old_names.warnings(environment, planned.plan, actor, beside))
    locks = lock_estimates.of(environment, planned.plan, operations)
    return Outcome(planned.state.version, operations, changed=True, warnings=warnings, locks=locks)


@contextmanager
def prepared(
    environment: EnvironmentRef,
    raw: object,
    *,
    actor: Caller | Actor,
    expected: int | None = None,
    confirm: Collection[str] = (),
    reverts_to: int | None = None,
    no_time_limit: bool = False,
    progress: concurrent_unique_indexes.Progress = lambda name: None,
) -> Generator[Callable[[], Outcome]]:
    """A change that makes the document `raw` the schema, atomically, in two steps, for a larger transaction: checks and
    builds indexes, then the block calls the yielded function to change the tables. That raises LockNotAvailable: repeat
    the whole transaction (`with_retries`). A document whose text is that of the current version changes nothing.
    `expected` is the edited version (None: current). `confirm` names operations that may lose data. Building new unique
    indexes is limited to SCHEMA_STATEMENT_TIMEOUT_MS unless `no_time_limit`; `progress` is called for each. Raises
    InvalidDocument, QuotaExceeded, Unconfirmed, VersionConflict, SchemaLost, TablesBusy and StatementTimeout."""
    planned = in_slot(_planned)(environment, raw, expected, actor)
    state, plan = planned.state, planned.plan
    if planned.is_empty:
        yield lambda: planned.unchanged
        return
    if missing := plan.destructive.difference(confirm):
        raise Unconfirmed(missing)
    warnings = (*planned.warnings, *old_names.warnings(environment, plan, actor, {}))
    with _status_migrating(environment), ExitStack() as until_done:
        made = concurrent_unique_indexes.wanted(environment, plan)
        if made:
            limit = 0 if no_time_limit else settings.SCHEMA_STATEMENT_TIMEOUT_MS
            # Fail early if a copy or import holds the lock, or the version has changed.
            with_retries(lambda: _require_version(environment, state.version))
            with_retries(
                lambda: until_done.enter_context(
                    concurrent_unique_indexes.built(environment, made, limit_ms=limit, progress=progress)
                )
            )
        yield lambda: replace(_change_once(environment, raw, state, plan, made, actor, reverts_to), warnings=warnings)


def _at_once(prepare: Callable[P, AbstractContextManager[Callable[[], T]]]) -> Callable[P, T]:
    @wraps(prepare)
    def call(*args: P.args, **options: P.kwargs) -> T:
        with prepare(*args, **options) as change_once:
            return with_retries(change_once)

    return call


change = _at_once(prepared)
"""As `prepared`, and makes the change itself, with retries. Returns its Outcome."""


def check_table_quota(environment: EnvironmentRef, old: Schema, new: Schema) -> None:
    """A schema that grew under a larger plan may stay, and shrink."""
    limit, used = plan_limits(environment.plan).tables_per_environment, len(old.tables)
    QuotaExceeded.check(used, limit, "tables in an environment", more=len(new.tables) - used)


@dataclass(frozen=True, slots=True)
class _PlannedChange:
    state: State
    plan: Plan
    warnings: tuple[FieldError, ...]
    is_empty: bool

    @property
    def unchanged(self) -> Outcome:
        return Outcome(self.state.version, (), changed=False, warnings=self.warnings)


def _planned(
    environment: EnvironmentRef, raw: object, expected: int | None, actor: Caller | Actor | None
) -> _PlannedChange:
    """Raises InvalidDocument, QuotaExceeded, VersionConflict, SchemaLost, Forbidden."""
    schema = parser.parse(raw)
    state = versions.current(environment)
    if errors := rules.validate(schema, is_strict=True):
        accepted_before = rules.validate(state.schema, is_strict=True)
        if errors := [error for error in errors if error not in accepted_before]:
            raise InvalidDocument([*errors, *_existing_row_errors(environment, schema)][:MAX_ERRORS])
    if expected is not None and expected != state.version:
        raise VersionConflict(state.version)
    if state.version == 0 and not schemas.has_schema(environment.environment_id, environment.cluster):
        raise SchemaLost
    check_table_quota(environment, state.schema, schema)
    changes = planner.user_field_changes(state.schema.users, schema.users)
    if environment.is_branch and isinstance(actor, Caller) and any(more for _, more, _ in changes):
        actor.need("users:manage")  # they are the users of another environment
    plan = planner.plan(state.schema, schema)
    if errors := rules.too_large(schema, state.schema, plan.renamed.kept_tables):
        raise InvalidDocument(errors)
    # A document equal to the last applied one is not applied again: its `renamed_from` could swap names back.
    is_repeated = state.record is not None and schema_model.digest(raw) == state.record.source_digest
    is_empty = is_repeated or (plan.is_empty and schema.digest == state.schema.digest)
    return _PlannedChange(state, plan, lint.of(schema), is_empty)


def with_retries(attempted: Callable[[], T]) -> T:
    """Retry while locks are not available, with pauses for readers. Raises TablesBusy."""
    wait = _FIRST_WAIT
    for attempt in range(1, settings.SCHEMA_LOCK_ATTEMPTS + 1):
        try:
            return attempted()
        except LockNotAvailable as error:
            if attempt == settings.SCHEMA_LOCK_ATTEMPTS:
                raise TablesBusy from error
        time.sleep(wait * random.uniform(0.5, 1))  # noqa: S311
        wait = min(wait * 2, _LONGEST_WAIT)
    raise AssertionError("unreachable")


def _require_version(environment: EnvironmentRef, number: int) -> None:
    """Raises VersionConflict, or LockNotAvailable during another change."""
    with transaction.atomic(using=environment.cluster):
        row = locked_version(environment)
        transaction.set_rollback(True, using=environment.cluster)  # releases the lock, even in an outer transaction
    if row.version != number:
        raise VersionConflict(row.version)


def _change_once(
    environment: EnvironmentRef,
    raw: object,
    state: State,
    plan: Plan,
    made: Sequence[AddedUnique],
    actor: Caller | Actor,
    reverts_to: int | None,
) -> Outcome:
    with transaction.atomic(using=environment.cluster):
        row = locked_version(environment)
        if row.version != state.version:
            raise VersionConflict(row.version)
        applied = apply.apply(environment.cluster, environment.environment_id, plan, made)
        failpoints.reach("schema.tables_changed")
        indexes_due = row.indexes_due or applied.indexes_due
        number = versions.add(
            environment,
            row,
            plan.new.document,
            [operation.as_dict() for operation in applied.operations],
            actor=actor,
            indexes_due=indexes_due,
            source_digest=schema_model.digest(raw),
            renames=plan.renamed.record,
            reverts_to=reverts_to,
        )
        audit_outbox.record(
            environment,
            "schema.applied" if reverts_to is None else "schema.reverted",
            actor=actor,
            target_id=environment.environment_id,
            version=number,
            operations=[operation.name for operation in applied.operations],
        )
        failpoints.reach("schema.before_commit")
    failpoints.reach("schema.after_commit")
    if indexes_due:
        dispatch.send("rows.tasks.make_indexes", environment.environment_id, using=environment.cluster)
    return Outcome(number, applied.operations, changed=True, indexes_due=indexes_due)


def locked_version(environment: EnvironmentRef) -> CurrentVersion:
    """The environment's locked row, created if new. Raises LockNotAvailable, NoSuchEnvironment, SchemaLost."""
    found = CurrentVersion.objects.using(environment.cluster)
    transaction_settings.set_local(environment.cluster, lock_timeout=f"{settings.SCHEMA_LOCK_TIMEOUT_MS}")
    try:
        environment_locks.lock_shared_in_region(environment.environment_id, environment.cluster)
        found.bulk_create([CurrentVersion(environment_id=environment.environment_id, version=0)], ignore_conflicts=True)
        return found.select_for_update().get(environment_id=environment.environment_id)
    except DatabaseError as error:
        if sqlstates.sqlstate(error) == sqlstates.LOCKED:
            raise LockNotAvailable from error
        raise


@contextmanager
def _status_migrating(environment: EnvironmentRef) -> Generator[None]:
    """If resetting the status fails, a periodic job does it (`rows.tasks`)."""
    status = Environment.Status
    environment_row = Environment.objects.filter(pk=environment.environment_id)
    environment_row.filter(status=status.READY).update(status=status.MIGRATING)
    try:
        yield
    finally:
        # The change is committed, even if the control database became unavailable meanwhile.
        with log_failures(f"resetting the status of {environment.environment_id}", using=DEFAULT_DB_ALIAS):
            environment_row.filter(status=status.MIGRATING, applying_plan=None).update(status=status.READY)
