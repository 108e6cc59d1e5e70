import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.db import transaction
from django.db.models.functions import Now

from accounts.audit import Actor
from functions.deploy import deletion as function_deletion
from functions.deploy import secrets, trial
from functions.directory import count_functions, function_of
from functions.models import Function, Version
from functions.triggers import event_subscriptions, inbound_endpoints, run_as_check, schedules
from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace
from platform_site.http.errors import NotFound, QuotaExceeded
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import plan_limits
from projects.directory import locks as environment_locks
from rows.outbox import audit as audit_outbox

DEFAULT_TIMEOUT_MS: Final = 5_000
SETTINGS: Final = ("timeout_ms", "memory_mb", "allowed_hosts", "invoke", "attempts")


def deploy(
    environment: EnvironmentRef,
    name: str,
    values: Mapping[str, Any],
    *,
    actor: Caller | Actor,
    runs_as: Caller | None = None,
) -> tuple[Function, bool]:
    """Deploy a version of `name` and activate it; True if the function is new. `values`: those of
    `serializers.Deployment`, or `secret_names` (all of them) in place of `secrets`. Triggered runs execute as
    `runs_as`, by default the actor. Call `trial.try_out` before. Raises ValidationFailed, Forbidden, QuotaExceeded."""
    using = environment.cluster
    source: str = values["source"]
    source_hash = hashlib.sha256(source.encode()).hexdigest()
    with transaction.atomic(using=using):
        _lock(environment)
        function = Function.objects.of(environment).filter(name=name).select_for_update().first()
        is_new = function is None
        if function is None:
            function = _new_function(environment, name)
        _set_up(function, environment, values, by=runs_as or _caller_of(actor))
        _activate_newest(function, source, source_hash, actor=actor, using=using)
        _store_related(function, environment, values)
        audit_outbox.record(
            environment, "function.deployed", actor=actor, target_id=function.pk, name=name,
            version=function.active_version, sha256=source_hash, **_describe_triggers(function, values),
        )  # fmt: skip
    return function, is_new


def _new_function(environment: EnvironmentRef, name: str) -> Function:
    check_function_quota(environment)
    return Function(
        environment_id=environment.environment_id,
        name=name,
        active_version=0,
        last_version=0,
        timeout_ms=min(DEFAULT_TIMEOUT_MS, plan_limits(environment.plan).function_timeout_ms),
        memory_mb=trial.DEFAULT_MEMORY_MB,
    )


def _activate_newest(function: Function, source: str, source_hash: str, *, actor: Caller | Actor, using: str) -> None:
    newest = Version.objects.using(using).filter(function_id=function.pk, number=function.last_version)
    is_new_version = not newest.filter(source_hash=source_hash).exists()
    if is_new_version:
        function.last_version += 1
    function.active_version = function.last_version
    function.save(using=using)
    if is_new_version:
        Version.objects.using(using).create(
            function=function,
            number=function.last_version,
            source=source,
            source_hash=source_hash,
            author_kind=actor.kind,
            author_id=actor.id,
        )


def configure(
    environment: EnvironmentRef,
    name: str,
    values: Mapping[str, Any],
    *,
    actor: Caller | Actor,
    runs_as: Caller | None = None,
) -> Function:
    """Change settings without a new version; `values` as in `deploy`. All triggers execute as `runs_as`, by default the
    actor. Call `trial.try_out` before. Raises NoSuchFunction and the errors of `deploy`."""
    using = environment.cluster
    with transaction.atomic(using=using):
        _lock(environment)
        function = function_of(environment, name, lock=True)
        _set_up(function, environment, values, by=runs_as or _caller_of(actor))
        function.save(using=using)
        _store_related(function, environment, values)
        audit_outbox.record(
            environment, "function.configured", actor=actor, target_id=function.pk, name=name,
            changed=sorted(values.keys() - {"secrets"}), secrets=sorted(values.get("secrets") or {}),
            **_describe_triggers(function, values),
        )  # fmt: skip
    return function


def _set_up(function: Function, environment: EnvironmentRef, values: Mapping[str, Any], *, by: Caller | None) -> None:
    for setting in SETTINGS:
        if setting in values:
            setattr(function, setting, values[setting])
    if "schedule" in values:
        schedules.configure(function, environment, values["schedule"], by=by)
    if "on" in values:
        event_subscriptions.configure(function, environment, values["on"] or None, by=by)
    _set_run_as(function, environment.cluster, by)
    function.updated_at = Now()


def _caller_of(actor: Caller | Actor) -> Caller | None:
    """None for staff and commands, as which no run can execute."""
    return actor if isinstance(actor, Caller) and actor.kind != "staff" else None


def _set_run_as(function: Function, using: str, by: Caller | None) -> None:
    """None changes nothing. Raises Forbidden if `by` lacks a permission, ValidationFailed."""
    ways = (
        schedules.set_run_as(function, by=by),
        event_subscriptions.set_run_as(function, by=by),
        inbound_endpoints.set_run_as(function, using, by=by),
    )
    run_as_check.check(by, ways)


def _store_related(function: Function, environment: EnvironmentRef, values: Mapping[str, Any]) -> None:
    secrets.set_values(function, values.get("secrets") or {}, environment.cluster)
    if "secret_names" in values:
        secrets.set_names(function, values["secret_names"], environment.cluster)
    if "on" in values:
        event_subscriptions.refresh(environment.environment_id, environment.cluster)
    function.refresh_from_db(using=environment.cluster)


def check_function_quota(environment: EnvironmentRef) -> None:
    """Call with the functions locked. Raises QuotaExceeded."""
    limit = plan_limits(environment.plan).functions_per_environment
    QuotaExceeded.check(count_functions(environment), limit, "functions in an environment")


def activate(environment: EnvironmentRef, name: str, version: int, *, actor: Caller | Actor) -> Function:
    """Raises NoSuchFunction, NotFound (the version), and Forbidden if the run-as identity lacks a permission."""
    using = environment.cluster
    with transaction.atomic(using=using):
        function = function_of(environment, name, lock=True)
        if not Version.objects.using(using).filter(function=function, number=version).exists():
            raise NotFound("There is no such version of this function.")
        function.active_version = version
        function.updated_at = Now()
        _set_run_as(function, using, _caller_of(actor))
        function.save(using=using)
        function.refresh_from_db(using=using)
        audit_outbox.record(
            environment, "function.activated", actor=actor, target_id=function.pk, name=name, version=version
        )
    return function


def stop_trigger(environment: EnvironmentRef, name: str, stop: Callable[..., None], *, actor: Actor) -> None:
    """`stop`: that of `schedules` or `event_subscriptions`. Raises NoSuchFunction."""
    with transaction.atomic(using=environment.cluster):
        function = function_of(environment, name, lock=True)
        stop(function, environment, Function.Stopped.OPERATOR, actor=actor)


def delete_function(environment: EnvironmentRef, name: str, *, actor: Caller | Actor) -> None:
    """Its runs are invisible from now on (`functions.deploy.deletion`). Raises NoSuchFunction."""
    with transaction.atomic(using=environment.cluster):
        function = function_of(environment, name, lock=True)  # no run of it starts after this
        function_deletion.start(environment.cluster, function.pk)
        if function.events is not None:
            event_subscriptions.refresh(environment.environment_id, environment.cluster)
        audit_outbox.record(environment, "function.deleted", actor=actor, target_id=function.pk, name=name)


def lock_functions(environment: EnvironmentRef) -> None:
    """Lock the environment's functions until the transaction ends. Raises NoSuchEnvironment."""
    _lock(environment)
    list(Function.objects.of(environment).select_for_update().order_by("pk").values_list("pk", flat=True))


def _lock(environment: EnvironmentRef) -> None:
    """For quota and version count. Raises NoSuchEnvironment."""
    environment_locks.lock_shared_in_region(environment.environment_id, environment.cluster)
    advisory_locks.lock(environment.cluster, LockSpace.NAMED, f"functions:{environment.environment_id}")


def _describe_triggers(function: Function, values: Mapping[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {}
    if "schedule" in values:
        described |= {"schedule": function.schedule, "scheduled_as": function.scheduled_id}
    if "on" in values:
        described |= {"on": function.events, "on_as": function.events_id}
    return described
