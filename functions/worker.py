"""The loop that executes a region's queued runs: claim one, resolve its caller, run it, record it, until none is left.

Several threads do so side by side in each worker process: the ones that Celery brings with its nudges, and a sibling
that a thread calls while the queue holds more than its own run. A thread waits for Deno most of the time.
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from django.conf import settings
from django.db import Error, close_old_connections, connections

from functions import notify as function_notify
from functions.execution import executor
from functions.execution.run_as import caller_again
from functions.models import Run
from functions.runs import completion
from functions.runs import queue as run_queue
from functions.runs.completion import Ending
from functions.runs.start import Started
from functions.triggers import event_subscriptions, schedules
from functions.triggers import events as event_triggers
from platform_site.identity.callers import Caller
from projects.provisioning import suspension

logger = logging.getLogger("platform.functions")

ShouldStop = Callable[[], bool]

_STANDS_BEHIND: Final = {
    Run.Trigger.CALL: "whoever invoked it",
    Run.Trigger.SCHEDULE: "whoever set its schedule",
    Run.Trigger.INBOUND: "whoever made its inbound address",
    Run.Trigger.EVENT: "whoever it runs as on events",
}
"""Who may no longer act where a run fails as `CallerGone`."""
_STOPS: Final = {Run.Trigger.SCHEDULE: schedules.stop, Run.Trigger.EVENT: event_subscriptions.stop}
_COMES_AGAIN: Final = timedelta(seconds=2)
"""After which a run whose caller nobody could look up is tried again."""
_LOOKS_AGAIN: Final = 0.2
"""Seconds until a thread calls another one after one found nothing to do."""


class _Crew:
    """The threads that one call of `Worker.run` has brought, and how many runs they executed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads: list[threading.Thread] = []
        self.executed = 0
        self.idle_at = -_LOOKS_AGAIN
        """When a thread last found nothing to do (`time.monotonic()`)."""

    def living(self) -> threading.Thread | None:
        """One of the threads that are still at work."""
        with self.lock:
            self.threads = [thread for thread in self.threads if thread.is_alive()]
            return self.threads[0] if self.threads else None


class Worker:
    """One region's loop in this process, at most `FUNCTION_WORKER_THREADS` times at once."""

    def __init__(self, using: str) -> None:
        self.using = using
        self._seats = threading.BoundedSemaphore(settings.FUNCTION_WORKER_THREADS)

    def run(self, should_stop: ShouldStop = lambda: False) -> int:
        """Execute until the queue is empty. Returns how many runs it and its siblings executed; 0 if every seat is
        taken, since whoever sits there looks again before leaving.

        A run that is queued while long ones execute waits for nobody: its nudge brings a thread of its own.
        """
        crew = _Crew()
        try:
            self._work(should_stop, crew)
        finally:
            # Here alone: if each waited for whom it called, a backlog would grow a chain of threads with a connection
            # each.
            while (thread := crew.living()) is not None:
                thread.join()
        return crew.executed

    def _work(self, should_stop: ShouldStop, crew: _Crew) -> None:
        if not self._seats.acquire(blocking=False):
            return
        sibling: threading.Thread | None = None
        found = False
        try:
            while not should_stop() and (claimed := self._claim()) is not None:
                found = True
                started, is_last = claimed
                is_needed = not is_last and (sibling is None or not sibling.is_alive())
                # What waits may wait for a seat of its environment: a thread for each run would come for nothing.
                if is_needed and time.monotonic() - crew.idle_at >= _LOOKS_AGAIN:
                    sibling = self._sibling(should_stop, crew)
                self._execute(started)
                with crew.lock:
                    crew.executed += 1
        finally:
            self._seats.release()
            if not found:
                crew.idle_at = time.monotonic()

    def _claim(self) -> tuple[Started, bool] | None:
        """The next run; where none is due, of those that events make."""
        claimed = run_queue.claim(self.using)
        return run_queue.claim(self.using) if claimed is None and event_triggers.queue(self.using) else claimed

    def _sibling(self, should_stop: ShouldStop, crew: _Crew) -> threading.Thread:
        """Another thread at the same loop. It calls a sibling of its own, so a backlog soon has all hands."""

        def join_in() -> None:
            try:
                self._work(should_stop, crew)
            except Error as error:
                logger.warning("region %s: a worker's thread stopped: %s", self.using, type(error).__name__)
            finally:
                connections.close_all()

        thread = threading.Thread(target=join_in, name="function-worker")
        with crew.lock:
            crew.threads = [other for other in crew.threads if other.is_alive()]
            thread.start()
            crew.threads.append(thread)
        return thread

    def _execute(self, started: Started) -> None:
        close_old_connections()
        try:
            again = caller_again(started.caller_kind, started.caller_id, started.environment_id)
            is_gone = again is None or not _may_run(started, again[0])
            if is_gone and (stop := _STOPS.get(Run.Trigger(started.trigger))) is not None:
                stop(started)
        except Error:
            # The control database is away. Left to its lease, the run would be lost with its third try.
            run_queue.give_back(started, _COMES_AGAIN)
            raise
        if again is None or is_gone:
            who = _STANDS_BEHIND[Run.Trigger(started.trigger)]
            gone = {"name": "CallerGone", "reason": "caller_gone", "message": f"{who} may no longer act here"}
            _, told = completion.end(started, Ending("failed", 0, error=gone))
        elif again[1].is_suspended:  # a moment ago: the claim did not know yet
            suspension.forget(self.using)
            run_queue.give_back(started, timedelta())
            return
        else:
            told = executor.execute(started, *again).told
        if told:
            function_notify.tell(self.using)


def _may_run(started: Started, caller: Caller) -> bool:
    if started.trigger == Run.Trigger.EVENT:
        return event_subscriptions.may_run(caller)
    return caller.may("functions:invoke")
