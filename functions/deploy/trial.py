import hashlib
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from functions.directory import function_of
from functions.execution import executor
from functions.models import Function, Version
from functions.runs import start
from functions.runtime.errors import LoadFailed, RuntimeFailed, StartFailed
from functions.runtime.programs import Busy, Program
from platform_site.http.errors import Unavailable, ValidationFailed
from platform_site.identity.callers import EnvironmentRef
from platform_site.identity.plans import plan_limits

DEFAULT_MEMORY_MB: Final = 128


def try_out(environment: EnvironmentRef, name: str, values: Mapping[str, Any]) -> None:
    """Load a new version's module, or the active one with a new memory limit. Raises ValidationFailed, Unavailable,
    NoSuchFunction."""
    limits = plan_limits(environment.plan)
    for field, ceiling in (("timeout_ms", limits.function_timeout_ms), ("memory_mb", limits.function_memory_mb)):
        if values.get(field, 0) > ceiling:
            raise ValidationFailed.of(field, "over_plan", f"The plan allows at most {ceiling}.")
    if "source" in values:
        known = Function.objects.of(environment).filter(name=name).first()
        memory = values.get("memory_mb", known.memory_mb if known else DEFAULT_MEMORY_MB)
        _load(environment, values["source"], memory, field="source")
    elif "memory_mb" in values:
        function = function_of(environment, name)
        active = Version.objects.using(environment.cluster).get(function=function, number=function.active_version)
        _load(environment, active.source, values["memory_mb"], field="memory_mb")


def _load(environment: EnvironmentRef, source: str, memory_mb: int, *, field: str) -> None:
    key = f"deployment:{hashlib.sha256(source.encode()).hexdigest()}:{memory_mb}"
    program = Program(key, environment.environment_id, source.encode(), memory_mb)
    try:
        executor.pool().check(program)
    except LoadFailed as error:
        raise ValidationFailed.of(field, "does_not_load", str(error)) from error
    except (StartFailed, Busy) as error:
        raise Unavailable("The runtime is busy; try the deployment again shortly.") from error


def warm(environment: EnvironmentRef, function: Function, source: str) -> None:
    source_hash = hashlib.sha256(source.encode()).hexdigest()
    key = start.program_key(function.pk, function.active_version, source_hash, function.memory_mb)
    program = Program(key, environment.environment_id, source.encode(), function.memory_mb)

    def warm_pool() -> None:
        with suppress(Busy, RuntimeFailed):
            executor.pool().warm(program)

    threading.Thread(target=warm_pool, name="function-warming", daemon=True).start()
