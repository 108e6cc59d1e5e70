"""The wait queue of synchronous calls in one process. An executing call holds a process of the pool, a slot of the plan
and maybe a thread, so this process bounds their number. A call without a slot waits in the queue, up to its function's
timeout, without a thread: on the event loop, or parked. A slot that becomes free goes to the environment with the
fewest executing calls, in it to the caller with the fewest, and among equals to the one served least recently.

The plan's slots are counted in PostgreSQL, over all processes (`functions.runs.start`). A call that finds none there
returns to the front of its caller's queue. The process then tries one call every RETRY seconds, or when a call of its
own ends."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import chain
from typing import Final, TypeVar

from django.conf import settings
from django.http import HttpRequest

from functions.errors import TooManyCalls, TooManyRuns
from functions.quotas.client_networks import AnonymousCall, recent_usage
from functions.quotas.slots import has_share, slots_for_all_networks
from functions.runs import start
from functions.runs.start import NewRun
from platform_site.concurrency import loop_requests, server_hints
from platform_site.postgres import loop_connections

_T = TypeVar("_T")

MAX_WEIGHT: Final = 16 * 1024 * 1024
"""Bytes: 256 calls with small bodies, fewer with large ones."""
WEIGHT_PER_CALL: Final = 64 * 1024
RETRY: Final = 0.02
"""Seconds between two attempts to take a slot of the plan while other processes hold all."""
PAUSE_FRACTION: Final = 0.05
"""After a call, its slot stays free for this part of the call's duration, so that other processes can take it."""
_MIN_PAUSE: Final = 0.005
_MAX_PAUSE: Final = 0.05
_ATTRIBUTE: Final = "function_admission"


class Full(Exception):
    pass


class State(Enum):
    """NEW: neither with a slot nor in the queue. HELD: with a slot. OVER: ended, timed out or refused."""

    NEW = "new"
    WAITING = "waiting"
    HELD = "held"
    OVER = "over"


@dataclass(slots=True, eq=False)
class Admission:
    environment_id: str
    caller: str = ""
    limit: int | None = None
    """How many calls of this kind the plan allows at the same time; None: it only waits for a queued run."""
    anonymous: AnonymousCall | None = None
    weight: int = WEIGHT_PER_CALL
    """Bytes, those of the request's body included."""
    since: float = field(default_factory=time.monotonic)
    until: float = 0.0
    """When its wait ends; 0 until the timeout of its function is read."""
    state: State = State.NEW
    is_refused: bool = False
    held_since: float = 0.0
    on_decision: Callable[[], None] | None = None
    kind: tuple[str, bool] = field(init=False)
    """Environment, and whether the caller is anonymous."""

    def __post_init__(self) -> None:
        self.kind = self.environment_id, self.anonymous is not None


class ConcurrencyLimiter:
    """`slots` executing calls in all, by default 7/8 of the process's threads, and no more than the pool has processes.
    An environment that has one executes another only while fewer than `shared` are taken. Thread-safe."""

    def __init__(self, slots: int | None = None, shared: int | None = None) -> None:
        threads, processes = settings.WEB_THREADS, settings.FUNCTION_POOL_SIZE
        self._slots = max(1, min(threads * 7 // 8, processes)) if slots is None else slots
        self._shared = self._slots - self._slots // 4 if shared is None else shared
        self._lock = threading.Lock()
        self._taken = 0
        self._held: dict[str, list[Admission]] = {}
        """By environment."""
        self._queues: dict[str, dict[str, deque[Admission]]] = {}
        """Waiting calls by environment and caller; the ones served least recently come first."""
        self._weight = 0  # of all waiting calls
        self._paused: dict[tuple[str, bool], float] = {}
        """Until when a kind of call of an environment does not try the plan's slots."""
        self._watcher: threading.Thread | None = None
        self._is_closed = False

    @contextmanager
    def slot(self, environment_id: str, *, anonymous: AnonymousCall | None = None) -> Iterator[None]:
        """A slot for a request that only waits: it holds a thread, for up to a minute. Raises Full."""
        admission = Admission(environment_id, anonymous=anonymous)
        with self._lock:
            if not self._has_free_slot(admission, time.monotonic()):
                raise Full
            self._take_slot(admission)
        try:
            yield
        finally:
            self.release(admission)

    def take(self, admission: Admission) -> None:
        """A slot, if one is free and no call of the environment waits."""
        with self._lock:
            if admission.environment_id not in self._queues and self._has_free_slot(admission, time.monotonic()):
                self._take_slot(admission)

    def enqueue(self, admission: Admission) -> None:
        with self._lock:
            self._enqueue(admission, at_front=False)

    def requeue(self, admission: Admission) -> None:
        """The plan's slots are all taken: return the slot of this process, and wait at the front of the queue."""
        with self._lock:
            now = time.monotonic()
            self._return_slot(admission)
            self._paused[admission.kind] = now + RETRY
            self._enqueue(admission, at_front=True)
            self._admit_waiting(now)

    def release(self, admission: Admission) -> None:
        """The call has ended, or is given up. Idempotent."""
        with self._lock:
            now, state = time.monotonic(), admission.state
            if state is State.WAITING:
                self._remove(admission)
            elif state is State.HELD:
                self._return_slot(admission)
                self._pause(admission, now)
            admission.state = State.OVER
            self._admit_waiting(now)
        if state is State.HELD and admission.anonymous is not None:
            recent_usage.record(admission.anonymous.network, now - admission.held_since)

    def when_decided(self, admission: Admission, callback: Callable[[], None]) -> None:
        with self._lock:
            if admission.state is State.WAITING:
                admission.on_decision = callback
                return
        callback()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for admission in self._waiting():
                self._refuse(admission)

    # ── All of these are called with the lock held ──

    def _waiting(self) -> list[Admission]:
        return [admission for queues in self._queues.values() for queue in queues.values() for admission in queue]

    def _refuse(self, admission: Admission) -> None:
        admission.is_refused = True
        self._decide(admission, State.OVER)

    def _has_free_slot(self, admission: Admission, now: float) -> bool:
        held = self._held.get(admission.environment_id, [])
        if self._taken >= (self._shared if held else self._slots):
            return False
        if admission.limit is None:
            waiting = [each.environment_id for each in chain(*self._held.values()) if each.limit is None]
            most = max(1, self._slots // 4)
            if admission.environment_id in waiting:
                most = max(1, most - 1)  # one of these is left to another environment
            if len(waiting) >= most:
                return False
        else:
            of_kind = [each for each in held if admission.anonymous is None or each.anonymous is not None]
            in_plan = sum(each.limit is not None for each in of_kind)
            if in_plan >= admission.limit or now < self._paused.get(admission.kind, 0.0):
                return False
        anonymous = admission.anonymous
        if anonymous is None:
            return True
        networks = [each.anonymous.network for each in held if each.anonymous is not None]
        most = max(1, self._shared // 2)
        if anonymous.is_heavy:
            most = slots_for_all_networks(most)
        return has_share(most, len(networks), networks.count(anonymous.network))

    def _take_slot(self, admission: Admission) -> None:
        admission.state, admission.held_since = State.HELD, time.monotonic()
        self._held.setdefault(admission.environment_id, []).append(admission)
        self._taken += 1
        if admission.kind in self._paused:
            self._paused[admission.kind] = admission.held_since + RETRY  # one attempt at a time until one succeeds

    def _return_slot(self, admission: Admission) -> None:
        admission.state = State.NEW
        held = self._held[admission.environment_id]
        held.remove(admission)
        if not held:
            del self._held[admission.environment_id]
        self._taken -= 1

    def _pause(self, admission: Admission, now: float) -> None:
        """End the pause of a kind that has had a slot. After a long call begin one, for other processes."""
        self._paused.pop(admission.kind, None)
        pause = min(_MAX_PAUSE, (now - admission.held_since) * PAUSE_FRACTION)
        if admission.limit is not None and admission.limit <= self._shared and pause >= _MIN_PAUSE:
            if admission.environment_id in self._queues:
                self._paused[admission.kind] = now + pause

    def _enqueue(self, admission: Admission, *, at_front: bool) -> None:
        now = time.monotonic()
        if now >= admission.until or self._is_closed:
            admission.state, admission.is_refused = State.OVER, self._is_closed
            return
        admission.state = State.WAITING
        queue = self._queues.setdefault(admission.environment_id, {}).setdefault(admission.caller, deque())
        if at_front:
            queue.appendleft(admission)
        else:
            queue.append(admission)
        self._weight += admission.weight
        self._admit_waiting(now)
        while self._weight > MAX_WEIGHT:
            # The newest call of the caller with the most weight, in the environment with the most.
            callers = max(
                self._queues.values(), key=lambda queues: sum(each.weight for each in chain(*queues.values()))
            )
            self._refuse(max(callers.values(), key=lambda queue: sum(each.weight for each in queue))[-1])
        if self._queues and self._watcher is None:
            watcher = threading.Thread(target=self._watch, name="function-queue", daemon=True)
            watcher.start()  # raises if the system has no more threads: then the next call tries again
            self._watcher = watcher

    def _remove(self, admission: Admission) -> None:
        queues = self._queues[admission.environment_id]
        queues[admission.caller].remove(admission)
        self._weight -= admission.weight
        if not queues[admission.caller]:
            del queues[admission.caller]
        if not queues:
            del self._queues[admission.environment_id]

    def _decide(self, admission: Admission, state: State) -> None:
        self._remove(admission)
        admission.state = state
        callback, admission.on_decision = admission.on_decision, None
        if callback is not None:
            callback()

    def _admit_waiting(self, now: float) -> None:
        while self._queues and (admission := self._next(now)) is not None:
            environment_id, caller = admission.environment_id, admission.caller
            self._take_slot(admission)
            self._decide(admission, State.HELD)
            if (queues := self._queues.pop(environment_id, None)) is not None:
                self._queues[environment_id] = queues
                if (queue := queues.pop(caller, None)) is not None:
                    queues[caller] = queue

    def _next(self, now: float) -> Admission | None:
        if self._taken >= self._slots:
            return None
        for environment_id in sorted(self._queues, key=lambda each: len(self._held.get(each, ()))):
            queues = self._queues[environment_id]
            executing = Counter(each.caller for each in self._held.get(environment_id, ()))
            for caller in sorted(queues, key=executing.__getitem__):
                if self._has_free_slot(queues[caller][0], now):
                    return queues[caller][0]
        return None

    def _watch(self) -> None:
        while True:
            time.sleep(RETRY)
            with self._lock:
                now = time.monotonic()
                for admission in self._waiting():
                    if now >= admission.until:
                        self._decide(admission, State.OVER)
                self._admit_waiting(now)
                if not self._queues:
                    self._paused.clear()
                    self._watcher = None
                    return


limiter: Final = ConcurrencyLimiter()
server_hints.on_shutdown.append(limiter.close)


def _admission_of(new: NewRun) -> Admission:
    if new.endpoint_id is not None:
        who = f"endpoint {new.endpoint_id}"
    elif new.anonymous is not None:
        who = f"network {new.anonymous.network}"
    else:
        who = f"{new.caller.kind} {new.caller.id}"
    weight = WEIGHT_PER_CALL + len(new.input_text)
    return Admission(new.environment.environment_id, who, new.may_take, new.anonymous, weight)


def with_slot(request: HttpRequest, new: NewRun, work: Callable[[], _T]) -> _T:
    """Run `work`, which creates and executes the run, with a slot. While it waits for one, a request in a server thread
    is parked and repeated from its beginning; elsewhere it waits here. Raises TooManyCalls."""
    loop_connections.release()  # waiting calls must not hold connections that others need
    server_hints.will_call_function(request)
    admission = request.__dict__.pop(_ATTRIBUTE, None) or _admission_of(new)
    if admission.state is State.NEW:
        limiter.take(admission)
    try:
        while True:
            if admission.state is State.HELD:
                loop_requests.will_write()
                try:
                    result = work()
                except TooManyRuns:
                    admission.until = admission.until or admission.since + start.timeout_of(new)
                    limiter.requeue(admission)
                else:
                    limiter.release(admission)
                    return result
            elif admission.state is State.NEW:
                admission.until = admission.since + start.timeout_of(new)
                limiter.enqueue(admission)
            if admission.state is State.WAITING:
                _wait(request, admission)
            if admission.state is State.OVER:
                raise TooManyCalls(admission.until - admission.since, is_queue_full=admission.is_refused)
    except server_hints.Parked:
        raise  # it keeps its place
    except BaseException:
        limiter.release(admission)
        raise


def _wait(request: HttpRequest, admission: Admission) -> None:
    if loop_requests.current() is None and server_hints.can_be_repeated(request):
        request.__dict__[_ATTRIBUTE] = admission  # for the repeated request
        raise server_hints.Parked(partial(limiter.when_decided, admission), partial(limiter.release, admission))
    loop_connections.release()
    decided = loop_requests.Gate()
    limiter.when_decided(admission, decided.open)
    decided.wait()
