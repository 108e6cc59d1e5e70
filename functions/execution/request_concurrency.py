"""The wait queue of synchronous calls in one process.

An executing call holds a thread of the web process (`platform_site.server.elastic_pool`), a process of the pool and one
of the plan's concurrency slots, so the number of executing calls is bounded: in all, for each environment, and for
anonymous callers (half, shared among their networks, `functions.quotas.client_networks`). A call that finds no slot
waits in the queue, up to its function's timeout. It holds no thread meanwhile
(`platform_site.concurrency.server_hints.Parked`).

A slot that becomes free goes to the environment with the fewest executing calls, in it to the caller with the fewest,
and among equals to the one that was served least recently. The queue is bounded by what its requests weigh; if it is
full, the newest call of the environment that has most in it ends with TooManyCalls.

The plan's slots are counted in PostgreSQL, over all processes (`functions.runs.start`). A call that finds none there
returns to the front of its caller's queue. The process then tries one call every RETRY seconds, or when a call of its
own ends.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from django.conf import settings
from django.http import HttpRequest

from functions.errors import TooManyCalls, TooManyRuns
from functions.quotas.client_networks import Visit, has_share, open_to_all, recent
from functions.runs import start
from platform_site.concurrency import server_hints
from platform_site.identity.callers import Caller, Place

_T = TypeVar("_T")
_Key = TypeVar("_Key")

MOST_WEIGHT: Final = 16 * 1024 * 1024
"""Of the queue of one process, in bytes: 256 calls with small bodies, fewer with large ones."""
WEIGHT_EACH: Final = 64 * 1024
RETRY: Final = 0.02
"""Seconds between two attempts at the plan's slots while calls in other processes hold them. Also the clock's tick."""
PAUSE_PART: Final = 0.05
"""After a call, its slot stays free for this part of the call's duration, so that other processes can take it."""
_SHORTEST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.05
_TURN: Final = "function_turn"


class Full(Exception):
    """No slot is free in this process at the moment."""


class State(Enum):
    NEW = "new"
    WAITING = "waiting"
    HELD = "held"
    OVER = "over"


@dataclass(slots=True, eq=False)
class Turn:
    """One call, from its arrival until it ends."""

    environment_id: str
    caller: str = ""
    """Calls of the same caller share its part of the environment's slots."""
    limit: int | None = None
    """How many calls of this kind the plan allows at the same time; None: it takes none of the plan's slots."""
    visit: Visit | None = None
    size: int = 0
    """Bytes of the request's body."""
    since: float = field(default_factory=time.monotonic)
    until: float = 0.0
    state: State = State.NEW
    is_crowded_out: bool = False
    held_since: float = 0.0
    on_decision: Callable[[], None] | None = None

    @property
    def kind(self) -> tuple[str, bool]:
        return self.environment_id, self.visit is not None


class WaitingRoom:
    """`seats` executing calls in all and `seats_each` of one environment. None: 7/8 and 3/4 of the lane's threads, and
    no more than the pool has processes. Thread-safe."""

    def __init__(self, seats: int | None = None, seats_each: int | None = None) -> None:
        self._seats, self._seats_each = seats, seats_each
        self._lock = threading.Lock()
        self._all = 0
        self._taken: Counter[str] = Counter()
        self._callers: Counter[tuple[str, str]] = Counter()
        self._calls: Counter[tuple[str, bool]] = Counter()
        self._visits: Counter[str] = Counter()
        self._networks: Counter[int] = Counter()
        self._queues: dict[str, dict[str, deque[Turn]]] = {}
        """Waiting calls by environment and caller; the ones served least recently come first."""
        self._weight = 0
        self._paused: dict[tuple[str, bool], float] = {}
        """Until when a kind of call of an environment leaves the plan's slots alone."""
        self._clock: threading.Thread | None = None
        self._is_closed = False

    @contextmanager
    def seat(self, environment_id: str, *, visit: Visit | None = None) -> Iterator[None]:
        """A slot for a request that holds a thread, but none of the plan's slots. Raises Full; never waits."""
        turn = Turn(environment_id, visit=visit)
        with self._lock:
            if not self._may_enter(turn, time.monotonic()):
                raise Full
            self._enter(turn)
        try:
            yield
        finally:
            self.leave(turn)

    def take(self, turn: Turn) -> None:
        """Give `turn` a slot if one is free and no call of its environment waits."""
        with self._lock:
            if turn.environment_id not in self._queues and self._may_enter(turn, time.monotonic()):
                self._enter(turn)

    def join(self, turn: Turn) -> None:
        """Put a new call at the end of its caller's queue, until `turn.until`."""
        with self._lock:
            self._wait(turn, at_front=False)

    def wait_again(self, turn: Turn) -> None:
        """The plan's slots are all taken: return the slot of this process, and wait at the front of the queue."""
        with self._lock:
            now = time.monotonic()
            self._give_back(turn)
            self._paused[turn.kind] = now + RETRY
            self._wait(turn, at_front=True)
            self._let_in(now)

    def leave(self, turn: Turn) -> None:
        """The call has ended, or is given up. A turn may leave more than once."""
        with self._lock:
            now, state = time.monotonic(), turn.state
            if state is State.WAITING:
                self._remove(turn)
            elif state is State.HELD:
                self._give_back(turn)
                self._pause(turn, now)
            turn.state = State.OVER
            self._let_in(now)
        if state is State.HELD and turn.visit is not None:
            recent.book(turn.visit.network, now - turn.held_since)

    def when_decided(self, turn: Turn, then: Callable[[], None]) -> None:
        """Call `then` once `turn` has a slot or has waited long enough; now, if that is so already."""
        with self._lock:
            if turn.state is State.WAITING:
                turn.on_decision = then
                return
        then()

    def close(self) -> None:
        """The process is about to end: nothing waits here any longer."""
        with self._lock:
            self._is_closed = True
            for turn in self._waiting():
                self._crowd_out(turn)

    # ── All of these are called with the lock held ──

    def _waiting(self) -> list[Turn]:
        return [turn for queues in self._queues.values() for queue in queues.values() for turn in queue]

    def _crowd_out(self, turn: Turn) -> None:
        turn.is_crowded_out = True
        self._decide(turn, State.OVER)

    def _most(self) -> tuple[int, int]:
        threads, processes = settings.LANE_THREADS, settings.FUNCTION_POOL_SIZE
        seats = max(1, min(threads * 7 // 8, processes)) if self._seats is None else self._seats
        return seats, max(1, min(threads * 3 // 4, processes)) if self._seats_each is None else self._seats_each

    def _may_enter(self, turn: Turn, now: float) -> bool:
        seats, each = self._most()
        environment_id, visit = turn.environment_id, turn.visit
        if self._all >= seats or self._taken[environment_id] >= each:
            return False
        if turn.limit is not None:
            others = 0 if visit is not None else self._calls[environment_id, True]
            if self._calls[turn.kind] + others >= turn.limit or now < self._paused.get(turn.kind, 0.0):
                return False
        if visit is None:
            return True
        most = max(1, each // 2)
        taken, own = self._visits[environment_id], self._networks[visit.network]
        return has_share(open_to_all(most) if visit.is_heavy else most, taken, own)

    def _enter(self, turn: Turn) -> None:
        turn.state, turn.held_since = State.HELD, time.monotonic()
        self._count(turn, 1)
        if turn.kind in self._paused:
            self._paused[turn.kind] = turn.held_since + RETRY  # one attempt at a time until one succeeds

    def _give_back(self, turn: Turn) -> None:
        turn.state = State.NEW
        self._count(turn, -1)

    def _count(self, turn: Turn, by: int) -> None:
        self._all += by
        _add(self._taken, turn.environment_id, by)
        _add(self._callers, (turn.environment_id, turn.caller), by)
        if turn.limit is not None:
            _add(self._calls, turn.kind, by)
        if turn.visit is not None:
            _add(self._visits, turn.environment_id, by)
            _add(self._networks, turn.visit.network, by)

    def _pause(self, turn: Turn, now: float) -> None:
        """After a call that has ended: the plan had a slot for it. A long one leaves it to other processes a moment."""
        self._paused.pop(turn.kind, None)
        pause = min(_LONGEST_PAUSE, (now - turn.held_since) * PAUSE_PART)
        if turn.limit is not None and turn.limit <= self._most()[1] and pause >= _SHORTEST_PAUSE:
            if turn.environment_id in self._queues:
                self._paused[turn.kind] = now + pause

    def _wait(self, turn: Turn, *, at_front: bool) -> None:
        now = time.monotonic()
        if now >= turn.until or self._is_closed:
            turn.state, turn.is_crowded_out = State.OVER, self._is_closed
            return
        turn.state = State.WAITING
        queue = self._queues.setdefault(turn.environment_id, {}).setdefault(turn.caller, deque())
        (queue.appendleft if at_front else queue.append)(turn)
        self._weight += WEIGHT_EACH + turn.size
        self._let_in(now)
        while self._weight > MOST_WEIGHT:
            self._crowd_out(self._heaviest())
        if self._queues and self._clock is None:
            self._clock = threading.Thread(target=self._watch, name="function-queue", daemon=True)
            self._clock.start()

    def _heaviest(self) -> Turn:
        """The newest call of the caller that has most in the queue, in the environment that has most in it."""

        def weight(queues: dict[str, deque[Turn]]) -> int:
            return sum(WEIGHT_EACH + turn.size for queue in queues.values() for turn in queue)

        queues = max(self._queues.values(), key=weight)
        return max(queues.values(), key=lambda queue: sum(WEIGHT_EACH + turn.size for turn in queue))[-1]

    def _remove(self, turn: Turn) -> None:
        queues = self._queues[turn.environment_id]
        queues[turn.caller].remove(turn)
        self._weight -= WEIGHT_EACH + turn.size
        if not queues[turn.caller]:
            del queues[turn.caller]
        if not queues:
            del self._queues[turn.environment_id]

    def _decide(self, turn: Turn, state: State) -> None:
        self._remove(turn)
        turn.state = state
        then, turn.on_decision = turn.on_decision, None
        if then is not None:
            then()

    def _let_in(self, now: float) -> None:
        while self._queues and (turn := self._next(now)) is not None:
            environment_id, caller = turn.environment_id, turn.caller
            self._enter(turn)
            self._decide(turn, State.HELD)
            if (queues := self._queues.pop(environment_id, None)) is not None:
                self._queues[environment_id] = queues
                if (queue := queues.pop(caller, None)) is not None:
                    queues[caller] = queue

    def _next(self, now: float) -> Turn | None:
        """The next call for which a slot is free: of the environment, and of the caller, with the fewest executing."""
        if self._all >= self._most()[0]:
            return None
        for environment_id in sorted(self._queues, key=self._taken.__getitem__):
            queues = self._queues[environment_id]
            for caller in sorted(queues, key=partial(self._executing_of, environment_id)):
                if self._may_enter(queues[caller][0], now):
                    return queues[caller][0]
        return None

    def _executing_of(self, environment_id: str, caller: str) -> int:
        return self._callers[environment_id, caller]

    def _watch(self) -> None:
        """In a thread of its own while calls wait: end those that waited long enough, and try the plan's slots."""
        while True:
            time.sleep(RETRY)
            with self._lock:
                now = time.monotonic()
                for turn in self._waiting():
                    if now >= turn.until:
                        self._decide(turn, State.OVER)
                self._let_in(now)
                if not self._queues:
                    self._paused.clear()
                    self._clock = None
                    return


def _add(counts: "Counter[_Key]", key: _Key, by: int) -> None:
    counts[key] += by
    if not counts[key]:
        del counts[key]


room: Final = WaitingRoom()
server_hints.when_leaving.append(room.close)


def turn_of(place: Place, caller: Caller, visit: Visit | None = None, *, name: str | None = None, size: int) -> Turn:
    """The turn of a call that arrives now. Anonymous callers are told apart by their network; `name` is what tells
    apart callers that share a `caller`."""
    who = name or (f"{caller.kind} {caller.id}" if visit is None else f"network {visit.network}")
    return Turn(place.environment_id, who, start.slots_for(place, caller, visit), visit, size)


def in_turn(request: HttpRequest, turn: Turn, timeout: Callable[[], float], work: Callable[[], _T]) -> _T:
    """The result of `work`, which begins and executes one call and raises TooManyRuns where the plan has no slot.

    Waits for a slot up to `timeout()` seconds, which is only asked if the call has to wait. Under the server's bridge
    the request gives its thread back meanwhile and is repeated from its beginning; elsewhere its thread waits. Raises
    TooManyCalls.
    """
    turn = request.__dict__.pop(_TURN, turn)
    if turn.state is State.NEW:
        room.take(turn)
    while True:
        if turn.state is State.HELD:
            server_hints.begin()
            try:
                result = work()
            except TooManyRuns:
                turn.until = turn.until or turn.since + timeout()
                room.wait_again(turn)
            except BaseException:
                room.leave(turn)
                raise
            else:
                room.leave(turn)
                return result
        elif turn.state is State.NEW:
            turn.until = turn.since + timeout()
            room.join(turn)
        if turn.state is State.WAITING:
            _wait(request, turn)
        if turn.state is State.OVER:
            raise TooManyCalls(turn.until - turn.since, is_queue_full=turn.is_crowded_out)


def _wait(request: HttpRequest, turn: Turn) -> None:
    if server_hints.can_be_repeated(request):
        request.__dict__[_TURN] = turn
        raise server_hints.Parked(partial(room.when_decided, turn), partial(room.leave, turn))
    decided = threading.Event()
    room.when_decided(turn, decided.set)
    decided.wait()
