"""The loop that executes a region's queued runs: claim one, resolve its caller, run it, record it, until none is left.

Several threads do so side by side in each worker process: the ones that Celery brings with its nudges, and a sibling
that a thread calls while the queue holds more than its own run. A thread waits for Deno most of the time.
"""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from django.conf import settings
from django.db import Error, close_old_connections, connections

from functions import claims, endings, executor, heard, schedules, subscriptions, wakeups
from functions.callers import caller_again
from functions.endings import Ending
from functions.models import Run
from functions.runs import Started
from platform_site.api.callers import Caller
from projects import suspension

logger = logging.getLogger("platform.functions")

ShouldStop = Callable[[], bool]

_STANDS_BEHIND: Final = {
    Run.Trigger.CALL: "whoever invoked it",
    Run.Trigger.SCHEDULE: "whoever set its schedule",
    Run.Trigger.INBOUND: "whoever made its inbound address",
    Run.Trigger.EVENT: "whoever it runs as on events",
}
"""Who may no longer act where a run fails as `CallerGone`."""
_STOPS: Final = {Run.Trigger.SCHEDULE: schedules.stop, Run.Trigger.EVENT: subscriptions.stop}
_COMES_AGAIN: Final = timedelta(seconds=2)
"""After which a run whose caller nobody could look up is tried again."""


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
        if not self._seats.acquire(blocking=False):
            return 0
        done, siblings, counted = 0, list[threading.Thread](), list[int]()
        try:
            while not should_stop() and (claimed := self._claim()) is not None:
                started, is_last = claimed
                siblings = [sibling for sibling in siblings if sibling.is_alive()]
                if not is_last and not siblings:
                    siblings.append(self._sibling(should_stop, counted))
                self._execute(started)
                done += 1
        finally:
            self._seats.release()
            for sibling in siblings:
                sibling.join()
        return done + sum(counted)

    def _claim(self) -> tuple[Started, bool] | None:
        """The next run; where none is due, of those that events make."""
        claimed = claims.claim(self.using)
        return claims.claim(self.using) if claimed is None and heard.queue(self.using) else claimed

    def _sibling(self, should_stop: ShouldStop, counted: list[int]) -> threading.Thread:
        """Another thread at the same loop. It calls a sibling of its own, so a backlog soon has all hands."""

        def join_in() -> None:
            try:
                counted.append(self.run(should_stop))
            except Error as error:
                logger.warning("region %s: a worker's thread stopped: %s", self.using, type(error).__name__)
            finally:
                connections.close_all()

        thread = threading.Thread(target=join_in, name="function-worker")
        thread.start()
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
            claims.give_back(started, _COMES_AGAIN)
            raise
        if again is None or is_gone:
            who = _STANDS_BEHIND[Run.Trigger(started.trigger)]
            gone = {"name": "CallerGone", "reason": "caller_gone", "message": f"{who} may no longer act here"}
            _, told = endings.end(started, Ending("failed", 0, error=gone))
        elif again[1].is_suspended:  # a moment ago: the claim did not know yet
            suspension.forget(self.using)
            claims.give_back(started, timedelta())
            return
        else:
            told = executor.execute(started, *again).told
        if told:
            wakeups.tell(self.using)


def _may_run(started: Started, caller: Caller) -> bool:
    if started.trigger == Run.Trigger.EVENT:
        return subscriptions.may_run(caller)
    return caller.may("functions:invoke")
