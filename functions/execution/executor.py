"""Executes a run in the process's pool and records the outcome, for requests and for `functions.worker`."""

import logging
import os
import threading
from datetime import UTC, datetime, timedelta
from typing import Final

from cachetools import LRUCache
from django.conf import settings
from django.db import Error

from functions.errors import NoSuchFunction
from functions.execution import custom_response
from functions.execution.custom_response import BadResponse
from functions.execution.host_api import RunHost
from functions.models import Run
from functions.runs import completion
from functions.runs import queue as run_queue
from functions.runs import start as runs_start
from functions.runs.lease_renewer import LeaseRenewer
from functions.runs.start import CreatedRun
from functions.runtime import messages, scratch
from functions.runtime.calls import Call, Outcome
from functions.runtime.errors import LoadFailed, Reason, RuntimeFailed
from functions.runtime.pool import Pool
from functions.runtime.programs import Busy, Program
from platform_site.identity import ids
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import plan_limits
from platform_site.postgres import loop_connections
from platform_site.security import keyring

logger = logging.getLogger("platform.functions")

SECRET_PURPOSE: Final = "functions.secret"  # noqa: S105 - a purpose, not a secret
_UNKNOWN_KEY_DELAY: Final = timedelta(seconds=5)
"""Of a queued run whose secrets were sealed with a key that this process does not have."""
_UNKNOWN_KEY_LIMIT: Final = timedelta(hours=1)
"""Since it was queued. By then every process should have the key."""
_SOURCE_CACHE_BYTES: Final = 16 * 1024 * 1024

_lock = threading.Lock()
_pool: Pool | None = None
_sources: LRUCache[str, bytes] = LRUCache(_SOURCE_CACHE_BYTES, getsizeof=len)


def pool() -> Pool:
    global _pool
    if _pool is None:
        with _lock:
            if _pool is None:
                _pool = Pool(
                    size=settings.FUNCTION_POOL_SIZE,
                    idle_seconds=settings.FUNCTION_IDLE_SECONDS,
                    max_calls=settings.FUNCTION_MAX_CALLS,
                    wait_seconds=settings.FUNCTION_POOL_WAIT,
                    load_seconds=settings.FUNCTION_LOAD_SECONDS,
                    required_sandbox_layers=frozenset(settings.FUNCTION_REQUIRED_SANDBOX_LAYERS),
                )
                threading.Thread(target=scratch.remove_leftovers, name="function-scratch", daemon=True).start()
    return _pool


def close_pool() -> None:
    global _pool
    with _lock:
        closing, _pool = _pool, None
    if closing is not None:
        closing.close()


def _after_fork() -> None:
    global _lock, _pool
    _lock, _pool = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)


lease_renewer = LeaseRenewer(lambda run_id: pool().cancel(run_id))


def execute(started: CreatedRun, caller: Caller, environment: EnvironmentRef) -> Outcome:
    """Never raises for errors of the code; DatabaseError if the outcome cannot be recorded (then the lease expires)."""
    limits = plan_limits(environment.plan)
    host = RunHost(caller, environment, allowed_hosts=started.allowed_hosts, depth=started.depth)
    try:
        program = _program(started)
        call = Call(
            input=started.input_text,
            run_id=started.run_id,
            caller={"kind": caller.kind, "id": caller.id, "email": caller.email, "role": caller.role},
            secrets={
                name: keyring.unseal(sealed, purpose=SECRET_PURPOSE).decode()
                for name, sealed in started.sealed_secrets.items()
            },
            timeout=started.timeout_ms / 1000,
            max_output=limits.run_output_bytes,
        )
        try:
            lease_renewer.start_renewing(started)
            loop_connections.release()
            outcome = pool().call(program, call, host)
        finally:
            lease_renewer.stop_renewing(started)
    except LoadFailed as error:
        outcome = _failure("user_error", "LoadFailed", str(error))
    except NoSuchFunction:
        outcome = _failure("platform", "FunctionGone", "the function was deleted before it ran")
    except Busy:
        outcome = _failure("platform", "Busy", "no process was free to run the function; try again shortly")
    except keyring.KeyringError as error:
        outcome = _failure("platform", "SecretsClosed", "the secrets of the function cannot be opened")
        if isinstance(error, keyring.UnknownKey) and started.is_async:
            # While encryption keys are rotated, another process may have the key that this one lacks.
            if datetime.now(UTC) - ids.created_at(started.run_id) < _UNKNOWN_KEY_LIMIT:
                run_queue.release(started, _UNKNOWN_KEY_DELAY)
                return outcome
    except RuntimeFailed as error:
        logger.error("the runtime failed", extra={"run_id": started.run_id, "why": str(error)[:500]})
        outcome = _failure("platform", "RuntimeFailed", "the function's process could not be started")
    except Error:
        raise  # the source could not be read, so an outcome could not be written either
    except Exception:
        logger.exception("a run failed on our side", extra={"run_id": started.run_id})
        outcome = _failure("platform", "PlatformError", "something went wrong on our side")
    if started.trigger == Run.Trigger.INBOUND and not started.is_async and outcome.output is not None:
        try:
            custom_response.read(outcome.output)
        except BadResponse as error:
            outcome.output, outcome.reason = None, "user_error"
            outcome.error = messages.error("BadResponse", str(error))
    if started.is_async and outcome.reason not in (None, "cancelled"):
        if run_queue.retry_later(started, timedelta(seconds=min(60, 2**started.attempt))):
            return outcome
    completion.record_end(started, outcome)
    return outcome


def _failure(reason: Reason, name: str, message: str) -> Outcome:
    return Outcome(0.0, reason=reason, error=messages.error(name, message))


def _program(started: CreatedRun) -> Program:
    key = started.program_key
    with _lock:
        source = _sources.get(key)
    if source is None:
        source = runs_start.source_of(started)
        with _lock:
            _sources[key] = source
    return Program(key, started.environment_id, source, started.memory_mb)
