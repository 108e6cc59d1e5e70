"""Service of functions: deploy, configure, activate, delete, invoke, cancel. For the API, the console and commands."""

import hashlib
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from django.db import connections, transaction
from django.db.models import Q
from django.db.models.functions import Now

from accounts.audit import Actor
from functions import notify as function_notify
from functions.deploy import deletion as function_deletion
from functions.errors import CallLoopError, FunctionsQuotaReached, NoSuchFunction, NoSuchRun, NoSuchVersion, RunEnded
from functions.execution import executor
from functions.execution.executor import SECRET_PURPOSE, CallResult
from functions.models import Function, Run, Secret, Version
from functions.quotas.client_networks import AnonymousCall
from functions.runs import completion, start
from functions.runs.start import Started
from functions.runtime.errors import LoadFailed, StartFailed
from functions.runtime.programs import Busy, Program
from functions.triggers import event_subscriptions, run_as_check, schedules
from functions.triggers import inbound_endpoints as inbound
from platform_site.http.errors import Unavailable, ValidationFailed
from platform_site.identity import call_depth, ids
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import plan_limits
from platform_site.security import keyring
from projects.directory import locks as environment_locks
from rows.outbox import audit as audit_outbox

NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}", re.ASCII)
DEFAULT_TIMEOUT_MS: Final = 5_000
DEFAULT_MEMORY_MB: Final = 128
SETTINGS: Final = ("timeout_ms", "memory_mb", "allowed_hosts", "invoke", "attempts")


def deploy(
    place: EnvironmentRef,
    name: str,
    values: Mapping[str, Any],
    *,
    actor: Caller | Actor,
    runs_as: Caller | None = None,
    warm: bool = True,
    tried: bool = False,
) -> tuple[Function, bool]:
    """Deploy a version of `name` and make it the active one; True if the function is new. A source equal to that of the
    newest version does not create a version.

    `values`: `source`, and optionally timeout_ms, memory_mb, allowed_hosts, invoke, attempts, schedule, on, `secrets`
    (name to value, null removes one) or `secret_names` (all that there are to be, new ones without a value). Omitted
    values stay as they are. Triggered runs execute as `runs_as`, by default the actor (`functions.triggers.schedules`).
    The module is loaded once in the sandbox: a source that does not load is refused with line and column (`tried`:
    `try_out` was called before this transaction). Then this process prepares one for the first call (`warm`). Raises
    ValidationFailed, Forbidden, FunctionsQuotaReached, SchedulesQuotaReached, SubscriptionsQuotaReached.
    """
    using = place.cluster
    if not tried:
        try_out(place, name, values)
    source: str = values["source"]
    source_hash = hashlib.sha256(source.encode()).hexdigest()
    with transaction.atomic(using=using):
        _lock(place.environment_id, using)
        function = (
            Function.objects.using(using).select_for_update().filter(environment_id=place.environment_id, name=name)
        ).first()
        is_new = function is None
        if function is None:
            _check_function_quota(place, 1)
            ceiling = plan_limits(place.plan).function_timeout_ms
            function = Function(
                environment_id=place.environment_id,
                name=name,
                active_version=0,
                last_version=0,
                timeout_ms=min(DEFAULT_TIMEOUT_MS, ceiling),
                memory_mb=DEFAULT_MEMORY_MB,
            )
        _set_up(function, place, values, by=runs_as or schedules.caller_of(actor))
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
        _store_related(function, place, values)
        audit_outbox.record(
            place, "function.deployed", actor=actor, target_id=function.pk, name=name, version=function.active_version,
            sha256=source_hash, **_describe_triggers(function, values),
        )  # fmt: skip
    if warm:
        _warm(place, function, source_hash, source)
    return function, is_new


def configure(
    place: EnvironmentRef,
    name: str,
    values: Mapping[str, Any],
    *,
    actor: Caller | Actor,
    runs_as: Caller | None = None,
    tried: bool = False,
) -> Function:
    """Change the settings of the function without creating a version.

    `values` as in `deploy`, without the source. The actor becomes the run-as identity of its schedule, events and
    inbound endpoints, as in a deployment. Raises NoSuchFunction and the errors of `deploy`.
    """
    using = place.cluster
    if not tried:
        try_out_configuration(place, name, values)
    with transaction.atomic(using=using):
        _lock(place.environment_id, using)
        function = function_of(place, name, lock=True)
        _set_up(function, place, values, by=runs_as or schedules.caller_of(actor))
        function.save(using=using)
        _store_related(function, place, values)
        audit_outbox.record(
            place, "function.configured", actor=actor, target_id=function.pk, name=name,
            changed=sorted(values.keys() - {"secrets"}), secrets=sorted(values.get("secrets") or {}),
            **_describe_triggers(function, values),
        )  # fmt: skip
    return function


def try_out_configuration(place: EnvironmentRef, name: str, values: Mapping[str, Any]) -> None:
    """The same for `configure`: loads the active version if its memory changes. Raises NoSuchFunction too."""
    _check_ceilings(place, values)
    if "memory_mb" in values:
        function = function_of(place, name)
        source = Version.objects.using(place.cluster).get(function=function, number=function.active_version).source
        _try_to_load(place, source, values["memory_mb"], field="memory_mb")


def _set_up(function: Function, place: EnvironmentRef, values: Mapping[str, Any], *, by: Caller | None) -> None:
    """The fields of a function that has the environment's lock; it is saved afterwards."""
    for setting in SETTINGS:
        if setting in values:
            setattr(function, setting, values[setting])
    schedules.deployed(function, place, values, by=by)
    event_subscriptions.deployed(function, place, values, by=by)
    _check_run_as(function, place.cluster, by)
    inbound.activated(function, place.cluster, by=by)
    function.updated_at = Now()


def _check_run_as(function: Function, using: str, by: Caller | None) -> None:
    """Raises Forbidden unless `by` may stand behind all that runs the function by itself, as it does from now on."""
    ways = (
        schedules.trigger_kind(function),
        event_subscriptions.trigger_kind(function),
        inbound.trigger_kind(function, using),
    )
    run_as_check.check(by, ways)


def _store_related(function: Function, place: EnvironmentRef, values: Mapping[str, Any]) -> None:
    """What is kept beside a function that was just saved."""
    _set_secrets(function, values.get("secrets") or {}, place.cluster)
    if "secret_names" in values:
        _set_secret_names(function, values["secret_names"], place.cluster)
    if "on" in values:
        event_subscriptions.refresh(place.environment_id, place.cluster)
    function.refresh_from_db(using=place.cluster)


def check_function_quota(place: EnvironmentRef, count: int) -> None:
    """Serialise deployments in the environment until the current transaction ends. Raises FunctionsQuotaReached unless
    its plan allows `count` more functions."""
    _lock(place.environment_id, place.cluster)
    _check_function_quota(place, count)


def _check_function_quota(place: EnvironmentRef, count: int) -> None:
    limit = plan_limits(place.plan).functions_per_environment
    if count_functions(place) + count > limit:
        raise FunctionsQuotaReached(limit)


def try_out(place: EnvironmentRef, name: str, values: Mapping[str, Any]) -> None:
    """Load the module of a deployment as a call would, and change nothing. Raises ValidationFailed."""
    _check_ceilings(place, values)
    known = Function.objects.using(place.cluster).filter(environment_id=place.environment_id, name=name).first()
    memory = values.get("memory_mb", known.memory_mb if known else DEFAULT_MEMORY_MB)
    _try_to_load(place, values["source"], memory)


def activate(place: EnvironmentRef, name: str, version: int, *, actor: Caller | Actor) -> Function:
    """Make another version the active one. Raises NoSuchFunction, NoSuchVersion, and Forbidden if the run-as identity
    of its triggers lacks a permission."""
    using = place.cluster
    with transaction.atomic(using=using):
        function = function_of(place, name, lock=True)
        if not Version.objects.using(using).filter(function=function, number=version).exists():
            raise NoSuchVersion
        function.active_version = version
        function.updated_at = Now()
        by = schedules.caller_of(actor)
        schedules.activated(function, by=by)
        event_subscriptions.activated(function, by=by)
        _check_run_as(function, using, by)
        inbound.activated(function, using, by=by)
        changed = ["active_version", "updated_at", *schedules.FIELDS, *event_subscriptions.FIELDS]
        function.save(using=using, update_fields=changed)
        function.refresh_from_db(using=using)
        audit_outbox.record(place, "function.activated", actor=actor, target_id=function.pk, name=name, version=version)
    return function


def stop_schedule(place: EnvironmentRef, name: str, *, actor: Actor) -> None:
    """Stop the function's schedule until it is set again, as operators may. No effect without a schedule. Raises
    NoSuchFunction."""
    using = place.cluster
    with transaction.atomic(using=using):
        function = function_of(place, name, lock=True)
        if function.next_run_at is None:
            return
        function.next_run_at, function.schedule_stopped = None, Function.Stopped.OPERATOR
        function.save(using=using, update_fields=["next_run_at", "schedule_stopped"])
        audit_outbox.record(
            place, "function.schedule_stopped", actor=actor, target_id=function.pk, name=name,
            reason=Function.Stopped.OPERATOR.value, scheduled_as=function.scheduled_id,
        )  # fmt: skip


def stop_events(place: EnvironmentRef, name: str, *, actor: Actor) -> None:
    """Stop the function's event triggers until its events are set again, as operators may. No effect without events.
    Raises NoSuchFunction."""
    using = place.cluster
    with transaction.atomic(using=using):
        function = function_of(place, name, lock=True)
        if not event_subscriptions.has_triggers(function):
            return
        function.events_stopped = Function.Stopped.OPERATOR
        function.save(using=using, update_fields=["events_stopped"])
        event_subscriptions.refresh(place.environment_id, using)
        audit_outbox.record(
            place, "function.events_stopped", actor=actor, target_id=function.pk, name=name,
            reason=Function.Stopped.OPERATOR.value, runs_as=function.events_id,
        )  # fmt: skip


def delete_function(place: EnvironmentRef, name: str, *, actor: Caller | Actor) -> None:
    """The function, its versions and secrets go for good, and its runs: none can be found from now on, however long it
    takes to remove them all (`functions.deploy.deletion`). Raises NoSuchFunction."""
    with transaction.atomic(using=place.cluster):
        function = function_of(place, name, lock=True)  # no run of it is begun from here on
        function_deletion.start(place.cluster, function.pk)
        if function.events is not None:
            event_subscriptions.refresh(place.environment_id, place.cluster)
        audit_outbox.record(place, "function.deleted", actor=actor, target_id=function.pk, name=name)


def start_call(
    place: EnvironmentRef,
    caller: Caller,
    name: str,
    input_text: str,
    *,
    depth: int = 0,
    is_async: bool = False,
    anonymous: AnonymousCall | None = None,
    address_id: str | None = None,
) -> Started:
    """Create a run of the function, to be executed here or by a worker. `anonymous` is the client network of an
    anonymous caller, `address_id` the inbound endpoint of the call.

    Raises NoSuchFunction, TooManyRuns, TooManyAnonymousCalls, TooManyQueued, and Conflict for a chain of calls that has
    become a loop.
    """
    if not NAME.fullmatch(name):
        raise NoSuchFunction
    if depth >= call_depth.MAX_DEPTH:
        raise CallLoopError(depth)
    return start.start_run(
        place, caller, name, input_text, depth=depth, is_async=is_async, anonymous=anonymous, address_id=address_id
    )


def timeout_of(place: EnvironmentRef, caller: Caller, name: str) -> float:
    """Seconds that a function may run, and that a call of it may wait. Raises NoSuchFunction, also for a function that
    this kind of caller may not invoke. One query."""
    if not NAME.fullmatch(name):
        raise NoSuchFunction
    invocable = Q(invoke="public") | Q(invoke=caller.kind if caller.kind in ("user", "anonymous") else "key")
    if caller.kind != "anonymous":
        invocable |= Q(invoke=None)
    found = Function.objects.using(place.cluster).filter(invocable, environment_id=place.environment_id, name=name)
    timeout_ms = found.values_list("timeout_ms", flat=True).first()
    if timeout_ms is None:
        raise NoSuchFunction
    return timeout_ms / 1000


def invoke(
    place: EnvironmentRef,
    caller: Caller,
    name: str,
    input_text: str,
    *,
    depth: int = 0,
    anonymous: AnonymousCall | None = None,
    address_id: str | None = None,
) -> tuple[Started, CallResult]:
    """Run the function now and wait for its end. `input_text` is JSON.

    Raises NoSuchFunction, TooManyRuns. Contract section 4.11.
    """
    started = start_call(place, caller, name, input_text, depth=depth, anonymous=anonymous, address_id=address_id)
    return started, execute(started, caller, place)


def execute(started: Started, caller: Caller, place: EnvironmentRef) -> CallResult:
    """Execute a run whose lease this process holds, and notify those that wait for its end."""
    ended = executor.execute(started, caller, place)
    if ended.told:
        function_notify.notify(place.cluster)
    return ended


def enqueue(
    place: EnvironmentRef,
    caller: Caller,
    name: str,
    input_text: str,
    *,
    depth: int = 0,
    anonymous: AnonymousCall | None = None,
    address_id: str | None = None,
) -> str:
    """Queue a run and return its id. It is committed with the current transaction; then a worker is notified.

    Raises NoSuchFunction, TooManyAnonymousCalls, TooManyQueued.
    """
    queued = start_call(
        place, caller, name, input_text, depth=depth, is_async=True, anonymous=anonymous, address_id=address_id
    )
    function_notify.after_commit(place.cluster)
    return queued.run_id


def cancel(place: EnvironmentRef, name: str, run_id: str, *, actor: Caller | Actor) -> Run:
    """Cancel a run: at once if it is queued, else as soon as its process looks, and once more is nothing new. Raises
    NoSuchRun, RunEnded."""
    using = place.cluster
    run = run_of(place, function_of(place, name), run_id)
    with transaction.atomic(using=using):
        is_new, told = completion.request_cancel(using, run.pk)
        if is_new:
            audit_outbox.record(place, "run.cancelled", actor=actor, target_id=run_id)
        elif not Run.objects.using(using).filter(pk=run.pk).exclude(phase=Run.Phase.ENDED).exists():
            raise RunEnded
    executor.pool().cancel(run.pk)  # if it is this process's own; `functions.runs.lease_renewer` finds it elsewhere
    if told:
        function_notify.notify(using)
    run.refresh_from_db(using=using)
    return run


def count_functions(place: EnvironmentRef) -> int:
    """How many the environment has. One query."""
    return Function.objects.using(place.cluster).filter(environment_id=place.environment_id).count()


def public_functions(place: EnvironmentRef) -> list[str]:
    """The names of the functions that callers with a publishable key may invoke. One query."""
    found = Function.objects.using(place.cluster).filter(environment_id=place.environment_id, invoke="public")
    return [*found.values_list("name", flat=True)]


def function_of(place: EnvironmentRef, name: str, *, lock: bool = False) -> Function:
    """The environment's function of that name. Raises NoSuchFunction."""
    if not NAME.fullmatch(name):
        raise NoSuchFunction
    found = Function.objects.using(place.cluster).filter(environment_id=place.environment_id, name=name)
    function = (found.select_for_update() if lock else found).first()
    if function is None:
        raise NoSuchFunction
    return function


def run_of(place: EnvironmentRef, function: Function, run_id: str) -> Run:
    """One run of the function. Raises NoSuchRun."""
    run = (
        Run.objects.using(place.cluster).filter(function=function, pk=run_id).first()
        if ids.matches("run", run_id)
        else None
    )
    if run is None:
        raise NoSuchRun
    return run


def copy_functions(source: EnvironmentRef, target: EnvironmentRef) -> None:
    """Functions come along to a preview branch with all their versions; their secrets by name, unset; their schedules
    and events stopped, so that nothing is done twice."""
    using = target.cluster
    for function in Function.objects.using(source.cluster).filter(environment_id=source.environment_id):
        names = list(Secret.objects.using(source.cluster).filter(function=function).values_list("name", flat=True))
        copy = Function.objects.using(using).create(
            environment_id=target.environment_id,
            name=function.name,
            active_version=function.active_version,
            last_version=function.last_version,
            timeout_ms=function.timeout_ms,
            memory_mb=function.memory_mb,
            allowed_hosts=function.allowed_hosts,
            invoke=function.invoke,
            attempts=function.attempts,
            **schedules.copied(function.schedule),
            **event_subscriptions.copied(function.events),
        )
        for version in Version.objects.using(source.cluster).filter(function=function).order_by("number").iterator(50):
            Version.objects.using(using).create(
                function=copy,
                number=version.number,
                source=version.source,
                source_hash=version.source_hash,
                author_kind=version.author_kind,
                author_id=version.author_id,
            )
        Secret.objects.using(using).bulk_create(Secret(function=copy, name=name, sealed_value=None) for name in names)


def _try_to_load(place: EnvironmentRef, source: str, memory_mb: int, *, field: str = "source") -> None:
    """Load the module as a call would. Raises ValidationFailed on `field` with the code's own words."""
    key = f"deployment:{hashlib.sha256(source.encode()).hexdigest()}:{memory_mb}"
    program = Program(key, place.environment_id, source.encode(), memory_mb)
    try:
        executor.pool().check(program)
    except LoadFailed as error:
        raise ValidationFailed.of(field, "does_not_load", str(error)) from error
    except (StartFailed, Busy) as error:
        raise Unavailable("The runtime is busy; try the deployment again shortly.") from error


def _warm(place: EnvironmentRef, function: Function, source_hash: str, source: str) -> None:
    """Start a process for the first call, in the background; a full pool or a failure costs that call its start."""
    key = start.program_key(function.pk, function.active_version, source_hash, function.memory_mb)
    executor.warm(Program(key, place.environment_id, source.encode(), function.memory_mb))


def _check_ceilings(place: EnvironmentRef, values: Mapping[str, Any]) -> None:
    limits = plan_limits(place.plan)
    for field, ceiling in (("timeout_ms", limits.function_timeout_ms), ("memory_mb", limits.function_memory_mb)):
        if values.get(field, 0) > ceiling:
            raise ValidationFailed.of(field, "over_plan", f"The plan allows at most {ceiling}.")


def _set_secrets(function: Function, secrets: Mapping[str, str | None], using: str) -> None:
    for name, value in secrets.items():
        if value is None:
            Secret.objects.using(using).filter(function=function, name=name).delete()
        else:
            sealed = keyring.seal(value.encode(), purpose=SECRET_PURPOSE)
            Secret.objects.using(using).update_or_create(
                function=function, name=name, defaults={"sealed_value": sealed, "updated_at": Now()}
            )


def _set_secret_names(function: Function, names: Collection[str], using: str) -> None:
    known = Secret.objects.using(using).filter(function=function)
    known.exclude(name__in=names).delete()
    new = set(names).difference(known.values_list("name", flat=True))
    Secret.objects.using(using).bulk_create(
        Secret(function=function, name=name, sealed_value=None) for name in sorted(new)
    )


def lock_functions(place: EnvironmentRef) -> None:
    """Let no function of the environment change until the transaction at hand ends. Raises NoSuchEnvironment."""
    _lock(place.environment_id, place.cluster)
    functions = Function.objects.using(place.cluster).filter(environment_id=place.environment_id)
    list(functions.select_for_update().order_by("pk").values_list("pk", flat=True))


def _lock(environment_id: str, using: str) -> None:
    """One deployment of an environment at a time, until the transaction ends: for the quota and the version count.

    Raises NoSuchEnvironment if the environment went meanwhile (`projects.directory.locks`).
    """
    environment_locks.lock_shared_in_region(environment_id, using)
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"functions:{environment_id}"])


def _describe_triggers(function: Function, values: Mapping[str, Any]) -> dict[str, Any]:
    """For the audit log, if the schedule or the events were set."""
    said: dict[str, Any] = {}
    if "schedule" in values:
        said |= {"schedule": function.schedule, "scheduled_as": function.scheduled_id}
    if "on" in values:
        said |= {"on": function.events, "on_as": function.events_id}
    return said
