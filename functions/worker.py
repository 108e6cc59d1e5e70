"""The worker loop: claims a queued run, resolves its caller, executes and records it, until the queue is empty. A
thread starts another one while the queue has more than its own run, since it mostly waits for Deno."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from django.conf import settings
from django.db import Error, close_old_connections, connections, transaction

from accounts.audit import SYSTEM
from functions.execution import executor
from functions.execution.run_as import restore_caller
from functions.models import Function, Run
from functions.runs import completion
from functions.runs import queue as run_queue
from functions.runs.start import CreatedRun
from functions.runtime.calls import Outcome
from functions.triggers import event_subscriptions, schedules
from functions.triggers import events as event_triggers
from projects.directory.environments import environment_ref
from projects.provisioning import suspension

logger = logging.getLogger("platform.functions")

ShouldStop = Callable[[], bool]

_CALLER_NAMES: Final = {  # of a run that fails as `CallerGone`
    Run.Trigger.CALL: "the caller",
    Run.Trigger.SCHEDULE: "the run-as identity of its schedule",
    Run.Trigger.INBOUND: "the run-as identity of its inbound endpoint",
    Run.Trigger.EVENT: "the run-as identity of its events",
}
_STORED_TRIGGERS: Final = {
    Run.Trigger.SCHEDULE: ("scheduled", schedules.stop),
    Run.Trigger.EVENT: ("events", event_subscriptions.stop),
}
"""The prefix of the columns with the run-as identity, and what stops the trigger."""
_RETRY_SECONDS: Final = timedelta(seconds=2)
_POLL_SECONDS: Final = 0.2
"""No thread starts a sibling this soon after one that found nothing to do."""


class _Threads:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.all: list[threading.Thread] = []
        self.executed = 0
        self.idle_at = -_POLL_SECONDS
        """When a thread last found nothing to do."""


class Worker:
    """One region's loop in this process, at most `FUNCTION_WORKER_THREADS` times at once. A quarter of them is reserved
    for short runs of environments that execute none: those of a few environments may take all others for minutes."""

    def __init__(self, using: str) -> None:
        self.using = using
        reserved = settings.FUNCTION_WORKER_THREADS // 4
        self._slots = threading.BoundedSemaphore(settings.FUNCTION_WORKER_THREADS - reserved)
        self._reserved_slots = threading.BoundedSemaphore(reserved)
        self._nothing_short_at = -_POLL_SECONDS
        """When a reserved thread last found nothing. It pauses, so that not each notification of a backlog claims."""

    def run(self, should_stop: ShouldStop = lambda: False) -> int:
        """Returns how many runs it and its siblings executed; 0 if every slot is taken, since each executing thread
        checks the queue again before it stops."""
        threads = _Threads()
        try:
            self._work(should_stop, threads)
        finally:
            # Waits only here: if each thread waited for the sibling that it started, a backlog would grow a chain of
            # threads with a connection each.
            while threads.all:
                threads.all.pop().join()
        return threads.executed

    def _work(self, should_stop: ShouldStop, threads: _Threads) -> None:
        slots = next((each for each in (self._slots, self._reserved_slots) if each.acquire(blocking=False)), None)
        if slots is None:
            return
        sibling: threading.Thread | None = None
        found = False
        try:
            while not should_stop() and (claimed := self._claim(is_reserved=slots is self._reserved_slots)) is not None:
                found = True
                started, is_last = claimed
                is_needed = not is_last and (sibling is None or not sibling.is_alive())
                # Queued runs may wait for a slot of their environment, so a thread per run could find nothing to do.
                if is_needed and time.monotonic() - threads.idle_at >= _POLL_SECONDS:
                    sibling = self._start_sibling(should_stop, threads)
                self._execute(started)
                with threads.lock:
                    threads.executed += 1
        finally:
            slots.release()
            if not found:
                threads.idle_at = time.monotonic()

    def _claim(self, *, is_reserved: bool) -> tuple[CreatedRun, bool] | None:
        if is_reserved:
            time.sleep(max(0.0, self._nothing_short_at + _POLL_SECONDS - time.monotonic()))
        claimed = run_queue.claim(self.using, is_reserved=is_reserved)
        if claimed is None and event_triggers.queue(self.using):
            claimed = run_queue.claim(self.using, is_reserved=is_reserved)
        if claimed is None and is_reserved:
            self._nothing_short_at = time.monotonic()
        return claimed

    def _start_sibling(self, should_stop: ShouldStop, threads: _Threads) -> threading.Thread | None:
        def work_as_sibling() -> None:
            try:
                self._work(should_stop, threads)
            except Error as error:
                logger.warning("region %s: a worker's thread stopped: %s", self.using, type(error).__name__)
            finally:
                connections.close_all()

        thread = threading.Thread(target=work_as_sibling, name="function-worker")
        with threads.lock:
            threads.all = [other for other in threads.all if other.is_alive()]
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads: those that run execute the rest
                return None
            threads.all.append(thread)
        return thread

    def _execute(self, started: CreatedRun) -> None:
        close_old_connections()
        try:
            needed = event_subscriptions.SCOPES if started.trigger == Run.Trigger.EVENT else ("functions:invoke",)
            restored = restore_caller(started.caller_kind, started.caller_id, started.environment_id, needed)
            if restored is None:
                _stop_trigger(started)
        except Error:
            # The control database is unavailable. If the lease just expired, the third attempt would be the last one.
            run_queue.release(started, _RETRY_SECONDS)
            raise
        if restored is None:
            who = _CALLER_NAMES[Run.Trigger(started.trigger)]
            error = {"name": "CallerGone", "message": f"{who} may no longer act here"}
            completion.record_end(started, Outcome(0.0, reason="caller_gone", error=error))
        elif restored.environment.is_suspended:  # suspended after the claim
            suspension.evict(self.using)
            run_queue.release(started, timedelta())
        else:
            executor.execute(started, restored.caller, restored.environment)


def _stop_trigger(started: CreatedRun) -> None:
    """The run-as identity lost its permissions: stop the schedule or the events that made the run, unless another
    identity was set meanwhile."""
    trigger = _STORED_TRIGGERS.get(Run.Trigger(started.trigger))
    environment = None if trigger is None else environment_ref(started.environment_id)
    if trigger is None or environment is None:
        return
    prefix, stop = trigger
    run_as = {f"{prefix}_kind": started.caller_kind, f"{prefix}_id": started.caller_id}
    with transaction.atomic(using=started.cluster):
        named = Function.objects.of(environment).filter(pk=started.function_id, **run_as)
        function = named.select_for_update(no_key=True).first()
        if function is not None:
            stop(function, environment, Function.Stopped.CALLER_GONE, actor=SYSTEM)
