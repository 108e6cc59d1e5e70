"""Reads a region's events and sends each stream what its caller may see of them, in passes: read, up to one snapshot,
the events that each stream has not seen; compare for each changed row what the caller could see before and what it sees
now; send the difference. The next pass follows a write, or POLL_SECONDS. Without streams it runs no query."""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from django.db import Error, close_old_connections, connections

from platform_site.http.errors import ApiError
from platform_site.observability import metrics
from rows.changes import stream_counts, watched_tables
from rows.changes.advance import advance, is_new, skip_unaffected
from rows.changes.credentials import check_batch
from rows.changes.event_reader import FetchedEvents, by_environment, by_position, current_snapshot, fetch
from rows.changes.notifications import POLL_SECONDS, Listener
from rows.changes.streams import Stream
from rows.changes.tasks import WORKERS, Task, TaskQueue, from_random_start

logger = logging.getLogger("platform.changes")

SETTLE_POLL_SECONDS: Final = 0.05
PAUSE_SECONDS: Final = 0.01
LONGEST_PAUSE_SECONDS: Final = 0.08
"""Between the starts of two passes, so that under load one serves many writes: it costs as much as a write, in every
web process. While writes keep coming the pause doubles."""
WATCH_SECONDS: Final = 60
"""How often the tables are watched again, each time for `change_retention_seconds`, at least ten minutes."""
MAX_FAILURE_SECONDS: Final = 10
"""Streams that could not be read or sent for longer are closed."""


class Feed:
    """The streams of one region in this process. Its thread reads for streams of several environments at once; WORKERS
    other threads read the rest, and send. At most one of them works for an environment, about a second at a time, so
    slow streams of one environment do not delay those of others."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._lock = threading.Lock()
        self._streams: list[Stream] = []
        self._thread: threading.Thread | None = None
        self._woken = threading.Event()
        self._is_notified = False
        """There was a write, or streams are not finished: the next pass includes all streams."""
        self._full_pass_at = 0.0
        self._added: list[Stream] = []
        self._counted_at = self._watched_at = 0.0
        self._tasks = TaskQueue()
        self._oldest_first: set[str] = set()
        """Environments whose tasks begin with the oldest positions, until one has no time for the most recent ones."""

    # ── From other threads ──

    def add(self, stream: Stream) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"changes-{self._using}", daemon=True)
                thread.start()
                self._thread = thread
                Listener(self._using, self.wake, lambda: self._thread is thread).start()
            self._streams.append(stream)
            self._added.append(stream)
        if is_ending():
            stream.end("restarting")
            stream_counts.remove([stream])
        self._woken.set()

    def wake(self) -> None:
        self._is_notified = True
        self._woken.set()

    def open_streams(self) -> list[Stream]:
        with self._lock:
            return [each for each in self._streams if not each.queue.is_closed]

    # ── In its thread ──

    def _run(self) -> None:
        workers = 0
        try:
            for number in range(WORKERS):
                threading.Thread(target=self._work, name=f"changes-{self._using}-{number}", daemon=True).start()
                workers += 1
            self._run_passes()
        except BaseException:
            logger.exception("region %s: the feed of changes ended", self._using)
            with self._lock:
                self._thread = None
                streams, self._streams = self._streams, []
            for stream in streams:
                stream.end("internal")
            metrics.CHANGE_STREAMS.labels(self._using).set(0)
        finally:
            for _ in range(workers):
                self._tasks.put(None)
            connections.close_all()

    def _run_passes(self) -> None:
        failing_since, max_wait, began, pause = 0.0, POLL_SECONDS, 0.0, PAUSE_SECONDS
        while True:
            self._woken.wait(max_wait)
            is_busy = time.monotonic() - began < 2 * pause
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS) if is_busy else PAUSE_SECONDS
            time.sleep(max(0.0, began + pause - time.monotonic()))
            self._woken.clear()
            began = time.monotonic()
            streams, added = self._take_streams()
            if not streams:
                return
            try:
                close_old_connections()
                self._renew(streams)
                unsettled = [each for each in streams if each.position is None]
                due = streams if self._is_full_pass_due() else list(dict.fromkeys([*unsettled, *added]))
                check_batch(each.credential for each in due)
                self._queue_tasks(due)
                failing_since = 0.0
                max_wait = SETTLE_POLL_SECONDS if unsettled else POLL_SECONDS
            except Error as error:
                self._is_notified = True
                logger.warning("region %s: changes could not be read: %s", self._using, type(error).__name__)
                connections[self._using].close()
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > MAX_FAILURE_SECONDS:
                    for stream in streams:
                        stream.end("unavailable")
                time.sleep(POLL_SECONDS)

    def _take_streams(self) -> tuple[list[Stream], list[Stream]]:
        """The open streams, and those of them that are new. Without any, the feed ends."""
        with self._lock:
            ended = [each for each in self._streams if each.queue.is_closed]
            self._streams = [each for each in self._streams if not each.queue.is_closed]
            streams = list(self._streams)
            added, self._added = self._added, []
            if not streams:
                self._thread = None
        stream_counts.remove(ended)
        metrics.CHANGE_STREAMS.labels(self._using).set(len(streams))
        metrics.CHANGE_LAG.labels(self._using).set(self._tasks.take_lag())
        metrics.CHANGE_SLOW_READERS.labels(self._using).inc(sum(each.queue.is_overflowed for each in ended))
        return streams, added

    def _is_full_pass_due(self) -> bool:
        """Whether to serve all streams, not only new ones: opening a thousand one by one must not serve a million."""
        now = time.monotonic()
        if not self._is_notified and now - self._full_pass_at < POLL_SECONDS:
            return False
        self._is_notified, self._full_pass_at = False, now
        return True

    def _queue_tasks(self, streams: Sequence[Stream]) -> None:
        """Queue a task for each environment whose last one is finished. Positions that several environments share are
        read here, in one round trip; those of one environment by its worker."""
        began = time.monotonic()
        groups = by_environment(streams)
        for environment_id in self._tasks.skip_unfinished(groups.keys()):
            del groups[environment_id]
        if not groups:
            return
        positions = by_position(stream for group in groups.values() for stream in group)
        # Up to a common snapshot, so that one read suffices for all in the next pass.
        until = current_snapshot(self._using) if len(positions) > 1 else None
        tasks = {environment_id: Task(environment_id, until, began) for environment_id in groups}
        for at_position in positions:
            environment_ids = by_environment(at_position).keys()
            if len(environment_ids) == 1:
                [environment_id] = environment_ids
                tasks[environment_id].unfetched.append(at_position)
                continue
            for fetched_for, found in fetch(self._using, at_position, until):
                for environment_id, group in by_environment(fetched_for).items():
                    tasks[environment_id].fetched.append((group, found))
        for task in tasks.values():
            self._tasks.put(task)

    # ── In a worker ──

    def _work(self) -> None:
        try:
            while (task := self._tasks.get()) is not None:
                close_old_connections()
                try:
                    self._serve_task(task)
                finally:
                    if self._tasks.finish(task):
                        self.wake()
                del task  # while idle, hold on to nothing: batches can have a megabyte for each stream
        finally:
            connections.close_all()

    def _serve_task(self, task: Task) -> None:
        for streams, found in task.fetched:
            self._serve_all(task, streams, found)
        is_reversed = task.environment_id in self._oldest_first
        for number, streams in enumerate(reversed(task.unfetched) if is_reversed else task.unfetched):
            if number and task.effort.is_over:
                self._oldest_first ^= {task.environment_id}  # the next tasks begin at the other end
                self.wake()
                break
            try:  # one position at a time: reconnecting clients each have their own, with much to read
                for fetched_for, found in fetch(self._using, streams, task.until):
                    task.effort.extend()
                    self._serve_all(task, fetched_for, found)
            except Error as error:
                self._record_failure(streams, error)
            except Exception:
                logger.exception("streams of %s ended", task.environment_id)
                for stream in streams:
                    stream.end("internal")

    def _serve_all(self, task: Task, streams: Sequence[Stream], found: FetchedEvents) -> None:
        now = time.monotonic()
        for number, stream in enumerate(from_random_start(streams)):
            # Ten thousand unaffected streams must not take long.
            if skip_unaffected(task.environment_id, stream, found, now):
                continue
            if number and task.effort.is_over and is_new(stream, found):
                self.wake()  # to compile it in the next pass
            else:
                self._serve(task, stream, found)

    def _serve(self, task: Task, stream: Stream, found: FetchedEvents) -> None:
        try:
            caller = stream.credential.caller()  # raises if the request would be refused now
            if caller is not stream.caller:
                stream.set_caller(caller)
            if not stream.queue.is_closed and advance(self._using, stream, found, task.effort):
                self.wake()
            stream.failing_since = 0.0
        except ApiError as error:
            stream.end(error.code)
        except Error as error:
            self._record_failure([stream], error)
        except Exception:
            logger.exception("a stream of %s ended", stream.environment.environment_id)
            stream.end("internal")

    def _record_failure(self, streams: Sequence[Stream], error: Error) -> None:
        logger.warning("region %s: changes could not be sent: %s", self._using, type(error).__name__)
        connections.close_all()
        now = time.monotonic()
        for stream in streams:
            stream.failing_since = stream.failing_since or now
            if now - stream.failing_since > MAX_FAILURE_SECONDS:
                stream.end("unavailable")

    def _renew(self, streams: Sequence[Stream]) -> None:
        now = time.monotonic()
        if now - self._counted_at >= stream_counts.REFRESH_SECONDS and not is_ending():
            self._counted_at = now
            stream_counts.refresh(streams)
        if now - self._watched_at < WATCH_SECONDS:
            return
        self._watched_at = now
        for of_one in by_environment(streams).values():
            watched_tables.watch(of_one[-1].environment, {table for each in of_one for table in each.tables})


_feeds: Final[dict[str, Feed]] = {}


def feed_of(using: str) -> Feed:
    return _feeds.setdefault(using, Feed(using))


_is_ending: Final = threading.Event()
is_ending: Final = _is_ending.is_set


def end_all() -> None:
    """End all streams, also those that are opened later: this process ends."""
    _is_ending.set()
    for feed in _feeds.values():
        streams = feed.open_streams()
        for stream in streams:
            stream.end("restarting")
        stream_counts.remove(streams)  # here, because the threads may end first
