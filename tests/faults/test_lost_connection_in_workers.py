"""What workers do, cut off from PostgreSQL at each of its steps: done again, it comes to what it comes to uncut."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from zlib import crc32

import psycopg
import pytest
from django.db import Error, close_old_connections, connections
from django.db.models.functions import Now

from functions.models import Run
from functions.triggers import events as event_triggers
from functions.worker import Worker
from projects.models import Project
from projects.tasks import finish_and_clean
from rows.models import PendingUserDeletion
from rows.tasks import finish_user_deletions
from tests.accounts.conftest import _mail_server, postbox  # noqa: F401 - fixtures
from tests.accounts.oauth.conftest import loopback as loopback
from tests.faults.lost_connections import MAX_STEPS, Lab, differ, none, sweep
from tests.faults.lost_connections import lab as lab
from tests.faults.lost_connections import world as world
from tests.faults.operations import REGION, World
from tests.support.connection_cuts import Break
from tests.support.database_contents import Changes, changes
from tests.support.flush import flush_redis
from tests.support.receiver import Receiver
from tests.support.service import wait_for
from webhooks.delivery.dispatcher import Dispatcher
from webhooks.delivery.relay import relay_batch
from webhooks.models import Delivery, Webhook
from webhooks.tasks import move_remaining_control_events

pytestmark = [pytest.mark.django_db(transaction=True, databases="__all__")]


@dataclass(frozen=True)
class Work:
    prepare: Callable[[World, Receiver], object]
    do: Callable[[], object]
    is_done: Callable[[], bool] = lambda: True
    at_least: frozenset[str] = frozenset()
    """Tables of which there may be more rows than uncut: what is tried again leaves its mark."""


def relay() -> None:
    while relay_batch(REGION):
        pass


def _somebody_new(w: World, receiver: Receiver) -> None:
    """And a webhook that hears of it, the same each time."""
    body = {"url": receiver.url(), "events": ["auth.user.created"]}
    if not any(each["events"] == body["events"] for each in w.do("listWebhooks")["data"]):
        w.do("createWebhook", body)
    w.do("createUser", w.somebody())


def _something_to_send(w: World, receiver: Receiver) -> None:
    Webhook.objects.using(REGION).update(url=receiver.url())
    w.a_task()


def _deleted(w: World, _: Receiver) -> None:
    Project.objects.filter(pk=w.a_project()["project_id"]).update(deleted_at=Now())


def _leaving(w: World, _: Receiver) -> None:
    person, token = w.member()
    w.do("insertRows", {"text": "Today"}, token=token, table="diaries")
    who = {"user_id": person["id"], "environment_id": w.production, "actor_kind": "system"}
    PendingUserDeletion.objects.using(REGION).create(**who)


def _heard(w: World, _: Receiver) -> None:
    name = w.name("f")
    w.do("deployFunction", {"source": "export default () => 1", "on": ["tasks.insert"]}, name=name)
    w.a_task()
    relay()
    w.do("deployFunction", {"source": "export default () => 1", "on": None}, name=name)


WORK: Final = {
    "control events": Work(
        _somebody_new,
        move_remaining_control_events,
    ),
    "relay": Work(lambda w, _: w.a_task(), relay),
    "dispatch": Work(
        _something_to_send,
        lambda: Dispatcher(REGION).run(linger=0),
        lambda: not Delivery.objects.using(REGION).filter(status="pending").exists(),
        frozenset({f"{REGION}.webhooks_attempt"}),
    ),
    "runs": Work(
        lambda w, _: w.a_run(),
        lambda: Worker(REGION).run(),
        lambda: not Run.objects.using(REGION).exclude(phase=Run.Phase.ENDED).exists(),
    ),
    "heard": Work(_heard, lambda: event_triggers.queue(REGION)),
    "deletion": Work(_deleted, finish_and_clean),
    "users": Work(_leaving, finish_user_deletions),
}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def quick(settings: Any) -> None:
    settings.WEBHOOK_LEASE = timedelta(seconds=2)


def trial(
    here: Lab, receiver: Receiver, work: Work, at: int | None, how: Break = Break.UNSENT
) -> tuple[list[str], str, Changes]:
    """The steps, that at which it was cut, and what has changed when it has been done again."""
    work.prepare(here.world, receiver)
    flush_redis()
    connections.close_all()
    for alias in ("default", REGION):
        connections[alias].ensure_connection()
    before = here.databases.look()
    here.cuts.plan(at, how)
    try:
        work.do()
    except (Error, psycopg.Error):
        assert at is not None
    done = here.cuts.stop()
    close_old_connections()

    def again() -> bool:
        sweep()
        work.do()
        return work.is_done()

    wait_for("all is done", again, 30)
    return done.steps, done.was_cut, changes(before, here.databases.look())


def cut(here: Lab, receiver: Receiver, name: str, uncut: Changes, at: int, how: Break) -> bool:
    work = WORK[name]
    _, was_cut, changed = trial(here, receiver, work, at, how)
    if not was_cut:
        return False
    here.trials += 1
    more = {table: counts for table, counts in changed.items() if table in work.at_least and counts > uncut[table]}
    if {**changed, **uncut.fromkeys(more)} != {**uncut, **uncut.fromkeys(more)}:
        here.problems.append(f"{name}, {how} at {at}: {differ(uncut, changed)}\n    {was_cut}")
    return True


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("quick")
def test_work_cut_off_twice_is_done_once(lab: Lab, receiver: Receiver) -> None:
    for name, work in WORK.items():
        trial(lab, receiver, work, None)
        steps, _, uncut = trial(lab, receiver, work, None)
        for at, how in ((len(steps), Break.UNANSWERED), (1 + crc32(name.encode()) % len(steps), Break.UNSENT)):
            assert any(cut(lab, receiver, name, uncut, step, how) for step in range(at, 0, -1)), name
    none(lab.problems)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", WORK)
def test_work_cut_off_at_each_step(lab: Lab, receiver: Receiver, name: str) -> None:
    trial(lab, receiver, WORK[name], None)
    steps, _, uncut = trial(lab, receiver, WORK[name], None)
    assert steps
    for how in Break:
        for at in range(1, MAX_STEPS):
            if not cut(lab, receiver, name, uncut, at, how):
                break
    print(f"\n{name}: {lab.trials} trials, {len(steps)} steps, {dict(uncut)}")
    none(lab.problems)
