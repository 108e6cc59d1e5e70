"""Operations whose connection is cut at each step, and what they must leave behind."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pytest
from django.db import close_old_connections, connections

from accounts.registration import email_outbox
from functions.models import Run
from functions.runs import leases
from platform_site.background.periodic import all_jobs
from platform_site.celery import app
from platform_site.config import apply
from tests.faults.operations import CALLS, PLACES, REGION, TAKES_KEY, Call, Make, World
from tests.support.client import Answer, Api
from tests.support.connection_cuts import Break, BreakingProxy, postgres_behind
from tests.support.database_contents import Changes, Databases, changes
from tests.support.flush import flush_redis
from tests.support.identity_provider import running
from tests.support.postbox import Postbox
from tests.support.service import wait_for
from webhooks.tasks import move_remaining_control_events

BEGUN_ANEW: Final = {"receiveSignInCallback"}
"""The browser's part of it is used up by the first response, even a refusal: a refused user begins again, and the same
request is refused."""


NOT_COUNTED: Final = {
    **dict.fromkeys(("deliverInbound", "verifyInbound"), f"{REGION}.functions_inboundendpoint"),
    "deleteMe": "default.api_idempotencyrecord",
    "applyConfig": f"{REGION}.config_plan",
}
"""When and how often an endpoint was used is a statistic that may be lost. And the caller whose account is deleted
cannot repeat the request by a key: a deletion that a periodic job finishes leaves no record of it. And a plan counts how often its apply was interrupted."""


MAX_STEPS: Final = 400


HANGS: Final = 20.0
"""Seconds that no response takes, whatever was cut: far more than any limit."""


@dataclass(frozen=True)
class Clean:
    """What a call does when nothing is cut."""

    answer: Answer
    changed: Changes
    """After the periodic jobs."""
    again: Answer
    twice: Changes
    """After it was sent twice, and the periodic jobs ran."""
    steps: list[str]
    is_swept: bool
    """Whether periodic jobs have something to do after it."""

    @property
    def is_read(self) -> bool:
        return not (self.changed or self.is_swept)


@dataclass
class Lab:
    """A world behind a wire, and what was found."""

    world: World
    cuts: BreakingProxy
    databases: Databases
    is_needed: bool = True
    """Whether the service may say that it cannot do without what the wire leads to."""
    look_again: Callable[[], None] = lambda: None
    """Called before each trial: what the process thinks of the other end is forgotten."""
    trials: int = 0
    problems: list[str] = field(default_factory=list)

    def ready(self, make: Make) -> Call:
        """A call, with the world at rest and nothing remembered: no connection, nothing in Redis."""
        call = make(self.world)
        email_outbox.send_due()
        move_remaining_control_events()
        flush_redis()
        connections.close_all()
        for alias in ("default", REGION):
            connections[alias].ensure_connection()
        self.look_again()
        return call

    def send(self, call: Call) -> Answer:
        try:
            return call.send(self.world.api)
        finally:
            close_old_connections()  # as the server does after each answer

    def clean(self, operation: str) -> Clean:
        call = self.ready(CALLS[operation])
        before = self.databases.look()
        self.cuts.plan()
        answer = self.send(call)
        steps = self.cuts.stop().steps
        at_once = after = self.databases.look()
        if before != at_once or PLACES[operation][0] != "GET":
            sweep()
            after = self.databases.look()
        again = self.send(call)
        if at_once != after:
            sweep()
        twice = self.databases.look()
        assert answer.status < 400, (operation, answer.status, answer.json)
        assert operation not in TAKES_KEY or changes(after, twice) == {}, f"{operation} does it twice under one key"
        return Clean(answer, changes(before, after), again, changes(before, twice), steps, at_once != after)

    def cut(self, operation: str, clean: Clean, at: int, how: Break, *, at_once: bool = False) -> bool:
        """One trial; False if the call has no such step. `at_once`: it is sent again before the periodic jobs run."""
        call = self.ready(CALLS[operation])
        before = self.databases.look()
        self.cuts.plan(at, how)
        began = time.monotonic()
        answer = self.send(call)
        took = time.monotonic() - began
        done = self.cuts.stop()
        if not done.was_cut:
            return False
        self.trials += 1
        found = [f"took {took:.1f} s"] if took > HANGS else []
        again, more = self._afterwards(call, clean, before, answer, at_once=at_once)
        found += more
        if is_refused(answer) and not self.is_needed:
            found.append("refused, and could do without")
        elif is_refused(answer) and clean.is_read and how is not Break.UNAVAILABLE:
            found.append("it was not read once more")
        if found:
            order = "again at once" if at_once else "periodic jobs first"
            head = f"{operation}, {how} at {at} ({order}): {answer.status}, then {again.status}"
            self.problems.append("\n    ".join([head, done.was_cut, *found]))
        return True

    def _afterwards(
        self, call: Call, clean: Clean, before: Any, answer: Answer, *, at_once: bool
    ) -> tuple[Answer, list[str]]:
        """What the repetition answered, and what was wrong with both answers or with what the databases hold."""
        at_once = at_once or clean.is_read
        found = []
        once, twice = counted(call.operation, clean.changed), counted(call.operation, clean.twice)
        if not is_refused(answer) and answer.status != clean.answer.status:
            found.append(f"answered {answer.status} {answer.json}")
        is_done = None
        if not at_once:
            sweep()
            changed = counted(call.operation, changes(before, self.databases.look()))
            is_done = changed == once
            if not is_refused(answer) and not is_done:
                found.append(f"said to be done, but {differ(once, changed)}")
            elif changed and not is_done:
                found.append(f"half done: {differ(once, changed)}")
        again = self.send(call)
        allowed = {clean.answer.status}
        if is_done is not False or call.operation in BEGUN_ANEW:
            allowed.add(clean.again.status)
        if again.status not in allowed:
            found.append(f"then {again.status} {again.json}")
        if clean.is_swept or (at_once and not clean.is_read):
            sweep()
        changed = counted(call.operation, changes(before, self.databases.look()))
        if changed not in (once, twice) and (changed or call.operation not in BEGUN_ANEW):
            found.append(f"in the end {differ(once, changed)}")
        return again, found

    def cut_at_each_step(self, operation: str, how: Break, *, at_once: bool) -> None:
        clean = self.clean(operation)
        for at in range(1, MAX_STEPS):
            if not self.cut(operation, clean, at, how, at_once=at_once):
                return
        self.problems.append(f"{operation}: still not at its end after {MAX_STEPS} steps")

    def cut_twice(self, operation: str) -> None:
        """At the last step, where a commit is lost or what follows it, and at another of those before."""
        clean = self.clean(operation)
        if steps := len(clean.steps):
            for at, how in ((steps, Break.UNANSWERED), (1 + crc32(operation.encode()) % steps, Break.UNSENT)):
                # What the process has learned meanwhile makes a call a step shorter.
                assert any(self.cut(operation, clean, step, how) for step in range(at, 0, -1)), operation


def is_refused(answer: Answer) -> bool:
    """Whether it says that this cannot be done now: to a browser by where it sends it."""
    return answer.status == 503 or "error=" in answer.headers.get("Location", "")


def counted(operation: str, found: Changes) -> Changes:
    left_out = NOT_COUNTED.get(operation)
    return {table: change for table, change in found.items() if table != left_out}


def differ(wanted: Changes, found: Changes) -> str:
    """In which tables how many rows came and went, and what would be right."""
    return ", ".join(
        f"{table} {found.get(table, (0, 0))} instead of {wanted.get(table, (0, 0))}"
        for table in sorted(wanted.keys() | found.keys())
        if wanted.get(table) != found.get(table)
    )


def sweep() -> None:
    """What is due within a minute in the control database and the region, without metrics. No run is executing then."""
    for each in all_jobs():
        is_of_metrics = each.name.startswith("platform_site.") and not each.name.startswith("platform_site.config.")
        if each.every <= 60 and each.using in ("default", REGION) and not is_of_metrics:
            each.run()
    executing = Run.objects.using(REGION).filter(phase=Run.Phase.EXECUTING)
    if executing.exists():
        wait_for("leases run out", lambda: not (leases.settle_lost(REGION) and executing.exists()), 20)


@pytest.fixture
def world(
    api: Api, settings: Any, tmp_path: Path, postbox: Postbox, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    app.loader.import_default_modules()  # where the periodic jobs are
    settings.RATE_LIMIT_FACTOR = 100_000
    settings.ORPHAN_GRACE_SECONDS = settings.DELETION_GRACE_SECONDS = 0
    monkeypatch.setattr(apply, "ABANDONED", timedelta(0))
    settings.FUNCTION_LEASE = timedelta(seconds=2)
    with running() as idp:
        yield World(api, tmp_path, postbox, idp)


@pytest.fixture
def lab(world: World) -> Iterator[Lab]:
    """With a wire to PostgreSQL."""
    with Databases(("default", REGION)) as databases, postgres_behind() as cuts:
        yield Lab(world, cuts, databases)


def none(problems: list[str]) -> None:
    assert not problems, f"{len(problems)} trials:\n" + "\n".join(problems)
