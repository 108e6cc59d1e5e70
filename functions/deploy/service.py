"""The verbs of `functions` (deploy, configure, activate, delete, invoke, cancel), each for every door. Design 8."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from django.db import connections, transaction
from django.db.models import Q
from django.db.models.functions import Now

from accounts.audit import Actor
from functions import notify as function_notify
from functions.deploy import deletion as function_deletion
from functions.errors import FunctionsQuotaReached, Loop, NoSuchFunction, NoSuchRun, NoSuchVersion, RunEnded
from functions.execution import executor
from functions.execution.executor import SECRET_PURPOSE, Ended
from functions.models import Function, Run, Secret, Version
from functions.quotas.client_networks import Visit
from functions.runs import completion, start
from functions.runs.start import Started
from functions.runtime.errors import LoadFailed, StartFailed
from functions.runtime.pool import Busy, Program
from functions.triggers import event_subscriptions, run_as_check, schedules
from functions.triggers import inbound_endpoints as inbound
from platform_site.http.errors import Unavailable, ValidationFailed
from platform_site.identity import call_depth, ids
from platform_site.identity.callers import Caller, Place
from platform_site.identity.plans import plan_limits
from platform_site.security import keyring
from projects.directory import locks as environment_locks
from rows.outbox import audit as audit_outbox

NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,62}", re.ASCII)
DEFAULT_TIMEOUT_MS: Final = 5_000
DEFAULT_MEMORY_MB: Final = 128
SETTINGS: Final = ("timeout_ms", "memory_mb", "allowed_hosts", "invoke", "attempts")


def deploy(
    place: Place,
    name: str,
    values: Mapping[str, Any],
    *,
    actor: Caller | Actor,
    runs_as: Caller | None = None,
    warm: bool = True,
) -> tuple[Function, bool]:
    """Deploy a version of `name` and make it the active one; True if the function is new. A source that is that of the
    newest version is that version: sent twice, it changes nothing twice.

    `values`: `source`, and optionally timeout_ms, memory_mb, allowed_hosts, invoke, attempts, schedule, on, `secrets`
    (name to value, null removes one; omitted ones stay). What is omitted stays as it was. By its schedule, on events
    and by its inbound addresses the function runs as `runs_as`, or else as the actor (`functions.triggers.schedules`).
    The module is loaded once, behind the walls: what does not load is refused with line and column. Then this process
    starts one for its first call (`warm`). Raises ValidationFailed, Forbidden, FunctionsQuotaReached,
    SchedulesQuotaReached, SubscriptionsQuotaReached.
    """
    using = place.cluster
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
            _check_room(place, 1)
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
        _set_aside(function, place, values)
        audit_outbox.record(
            place, "function.deployed", actor=actor, target_id=function.pk, name=name, version=function.active_version,
            sha256=source_hash, **_said_of_what_runs_it(function, values),
        )  # fmt: skip
    if warm:
        _warm(place, function, source_hash, source)
    return function, is_new


def configure(
    place: Place, name: str, values: Mapping[str, Any], *, actor: Caller | Actor, runs_as: Caller | None = None
) -> Function:
    """Change what belongs to the function and not to a version of it; no version is made.

    `values` as in `deploy` but for the source, and what is omitted stays as it was. Whoever does so stands behind its
    schedule, events and inbound addresses from now on, as whoever deploys does. Raises NoSuchFunction and what `deploy`
    raises.
    """
    using = place.cluster
    _check_ceilings(place, values)
    if "memory_mb" in values:
        function = function_of(place, name)
        source = Version.objects.using(using).get(function=function, number=function.active_version).source
        _try_to_load(place, source, values["memory_mb"], field="memory_mb")
    with transaction.atomic(using=using):
        _lock(place.environment_id, using)
        function = function_of(place, name, lock=True)
        _set_up(function, place, values, by=runs_as or schedules.caller_of(actor))
        function.save(using=using)
        _set_aside(function, place, values)
        audit_outbox.record(
            place, "function.configured", actor=actor, target_id=function.pk, name=name,
            changed=sorted(values.keys() - {"secrets"}), secrets=sorted(values.get("secrets") or {}),
            **_said_of_what_runs_it(function, values),
        )  # fmt: skip
    return function


def _set_up(function: Function, place: Place, values: Mapping[str, Any], *, by: Caller | None) -> None:
    """The fields of a function that has the environment's lock; it is saved afterwards."""
    for setting in SETTINGS:
        if setting in values:
            setattr(function, setting, values[setting])
    schedules.deployed(function, place, values, by=by)
    event_subscriptions.deployed(function, place, values, by=by)
    _check_standing(function, place.cluster, by)
    inbound.activated(function, place.cluster, by=by)
    function.updated_at = Now()


def _check_standing(function: Function, using: str, by: Caller | None) -> None:
    """Raises Forbidden unless `by` may stand behind all that runs the function by itself, as it does from now on."""
    ways = (schedules.way(function), event_subscriptions.way(function), inbound.way(function, using))
    run_as_check.check(by, ways)


def _set_aside(function: Function, place: Place, values: Mapping[str, Any]) -> None:
    """What is kept beside a function that was just saved."""
    _set_secrets(function, values.get("secrets") or {}, place.cluster)
    if "on" in values:
        event_subscriptions.refresh(place.environment_id, place.cluster)
    function.refresh_from_db(using=place.cluster)


def make_room(place: Place, count: int) -> None:
    """Let nobody else deploy in the environment until the transaction at hand ends. Raises FunctionsQuotaReached unless
    its plan allows `count` more functions."""
    _lock(place.environment_id, place.cluster)
    _check_room(place, count)


def _check_room(place: Place, count: int) -> None:
    limit = plan_limits(place.plan).functions_per_environment
    if count_functions(place) + count > limit:
        raise FunctionsQuotaReached(limit)


def try_out(place: Place, name: str, values: Mapping[str, Any]) -> None:
    """Load the module of a deployment as a call would, and change nothing. Raises ValidationFailed."""
    _check_ceilings(place, values)
    known = Function.objects.using(place.cluster).filter(environment_id=place.environment_id, name=name).first()
    memory = values.get("memory_mb", known.memory_mb if known else DEFAULT_MEMORY_MB)
    _try_to_load(place, values["source"], memory)


def activate(place: Place, name: str, version: int, *, actor: Caller | Actor) -> Function:
    """Make an earlier (or later) version the one that answers. Raises NoSuchFunction, NoSuchVersion, and Forbidden
    where it would run by a schedule, on events or by an inbound address as somebody who may not."""
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
        _check_standing(function, using, by)
        inbound.activated(function, using, by=by)
        changed = ["active_version", "updated_at", *schedules.FIELDS, *event_subscriptions.FIELDS]
        function.save(using=using, update_fields=changed)
        function.refresh_from_db(using=using)
        audit_outbox.record(place, "function.activated", actor=actor, target_id=function.pk, name=name, version=version)
    return function


def stop_schedule(place: Place, name: str, *, actor: Actor) -> None:
    """Let nothing come of the function's schedule until somebody sets it again, as operators may. Nothing happens where
    it does not run by one. Raises NoSuchFunction."""
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


def stop_events(place: Place, name: str, *, actor: Actor) -> None:
    """Let the function run on no event until somebody names its events again, as operators may. Nothing happens where
    it runs on none. Raises NoSuchFunction."""
    using = place.cluster
    with transaction.atomic(using=using):
        function = function_of(place, name, lock=True)
        if not event_subscriptions.is_listening(function):
            return
        function.events_stopped = Function.Stopped.OPERATOR
        function.save(using=using, update_fields=["events_stopped"])
        event_subscriptions.refresh(place.environment_id, using)
        audit_outbox.record(
            place, "function.events_stopped", actor=actor, target_id=function.pk, name=name,
            reason=Function.Stopped.OPERATOR.value, runs_as=function.events_id,
        )  # fmt: skip


def delete_function(place: Place, name: str, *, actor: Caller | Actor) -> None:
    """The function, its versions and secrets go for good, and its runs: none can be found from now on, however long it
    takes to remove them all (`functions.deploy.deletion`). Raises NoSuchFunction."""
    with transaction.atomic(using=place.cluster):
        function = function_of(place, name, lock=True)  # no run of it is begun from here on
        function_deletion.begin(place.cluster, function.pk)
        if function.events is not None:
            event_subscriptions.refresh(place.environment_id, place.cluster)
        audit_outbox.record(place, "function.deleted", actor=actor, target_id=function.pk, name=name)


def begin(
    place: Place,
    caller: Caller,
    name: str,
    input_text: str,
    *,
    depth: int = 0,
    is_async: bool = False,
    visit: Visit | None = None,
    address_id: str | None = None,
) -> Started:
    """Make a run of the function, to be executed by us now or by a worker. `visit` says where a visitor comes from,
    `address_id` by which inbound address it came.

    Raises NoSuchFunction, TooManyRuns, TooManyVisits, TooManyQueued, and Conflict for a chain of calls that has become
    a loop.
    """
    if not NAME.fullmatch(name):
        raise NoSuchFunction
    if depth >= call_depth.LONGEST:
        raise Loop(depth)
    return start.begin(
        place, caller, name, input_text, depth=depth, is_async=is_async, visit=visit, address_id=address_id
    )


def timeout_of(place: Place, caller: Caller, name: str) -> float:
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
    place: Place,
    caller: Caller,
    name: str,
    input_text: str,
    *,
    depth: int = 0,
    visit: Visit | None = None,
    address_id: str | None = None,
) -> tuple[Started, Ended]:
    """Run the function now and wait for its end. `input_text` is JSON.

    Raises NoSuchFunction, TooManyRuns. Contract section 4.11.
    """
    started = begin(place, caller, name, input_text, depth=depth, visit=visit, address_id=address_id)
    return started, execute(started, caller, place)


def execute(started: Started, caller: Caller, place: Place) -> Ended:
    """Execute a run that is ours, and wake whoever is to be told of its end."""
    ended = executor.execute(started, caller, place)
    if ended.told:
        function_notify.tell(place.cluster)
    return ended


def enqueue(
    place: Place,
    caller: Caller,
    name: str,
    input_text: str,
    *,
    depth: int = 0,
    visit: Visit | None = None,
    address_id: str | None = None,
) -> str:
    """Queue a run and return its id. It is committed with the transaction at hand, then a worker is nudged.

    Raises NoSuchFunction, TooManyVisits, TooManyQueued.
    """
    queued = begin(place, caller, name, input_text, depth=depth, is_async=True, visit=visit, address_id=address_id)
    function_notify.after_commit(place.cluster)
    return queued.run_id


def cancel(place: Place, name: str, run_id: str, *, actor: Caller | Actor) -> Run:
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
        function_notify.tell(using)
    run.refresh_from_db(using=using)
    return run


def count_functions(place: Place) -> int:
    """How many the environment has. One query."""
    return Function.objects.using(place.cluster).filter(environment_id=place.environment_id).count()


def public_functions(place: Place) -> list[str]:
    """The names of those that everybody may invoke who shows a publishable key. One query."""
    found = Function.objects.using(place.cluster).filter(environment_id=place.environment_id, invoke="public")
    return [*found.values_list("name", flat=True)]


def function_of(place: Place, name: str, *, lock: bool = False) -> Function:
    """The environment's function of that name. Raises NoSuchFunction."""
    if not NAME.fullmatch(name):
        raise NoSuchFunction
    found = Function.objects.using(place.cluster).filter(environment_id=place.environment_id, name=name)
    function = (found.select_for_update() if lock else found).first()
    if function is None:
        raise NoSuchFunction
    return function


def run_of(place: Place, function: Function, run_id: str) -> Run:
    """One run of the function. Raises NoSuchRun."""
    run = (
        Run.objects.using(place.cluster).filter(function=function, pk=run_id).first()
        if ids.matches("run", run_id)
        else None
    )
    if run is None:
        raise NoSuchRun
    return run


def copy_functions(source: Place, target: Place) -> None:
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


def _try_to_load(place: Place, source: str, memory_mb: int, *, field: str = "source") -> None:
    """Load the module as a call would. Raises ValidationFailed on `field` with the code's own words."""
    key = f"deployment:{hashlib.sha256(source.encode()).hexdigest()}:{memory_mb}"
    program = Program(key, place.environment_id, source.encode(), memory_mb)
    try:
        executor.pool().check(program)
    except LoadFailed as error:
        raise ValidationFailed.of(field, "does_not_load", str(error)) from error
    except (StartFailed, Busy) as error:
        raise Unavailable("The runtime is busy; try the deployment again shortly.") from error


def _warm(place: Place, function: Function, source_hash: str, source: str) -> None:
    """Start a process for the first call, in the background; a full pool or a failure costs that call its start."""
    key = start.program_key(function.pk, function.active_version, source_hash, function.memory_mb)
    executor.warm(Program(key, place.environment_id, source.encode(), function.memory_mb))


def _check_ceilings(place: Place, values: Mapping[str, Any]) -> None:
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


def _lock(environment_id: str, using: str) -> None:
    """One deployment of an environment at a time, until the transaction ends: for the quota and the version count.

    Raises NoSuchEnvironment if the environment went meanwhile (`projects.directory.locks`).
    """
    environment_locks.stay_in_region(environment_id, using)
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"functions:{environment_id}"])


def _said_of_what_runs_it(function: Function, values: Mapping[str, Any]) -> dict[str, Any]:
    """For the trail, where the schedule or the events were set."""
    said: dict[str, Any] = {}
    if "schedule" in values:
        said |= {"schedule": function.schedule, "scheduled_as": function.scheduled_id}
    if "on" in values:
        said |= {"on": function.events, "on_as": function.events_id}
    return said
