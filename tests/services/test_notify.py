"""Notifications: sent after the commit, quickly or not at all."""

import multiprocessing
import os
import re
import signal
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from uuid import uuid4

import pytest
from celery import shared_task
from django.db import transaction
from pytest_django.fixtures import Settings

from platform_site.background import dispatch
from platform_site.celery import app
from tests.faults.conftest import OwnValkey
from tests.support import valkey as embedded_valkey
from tests.support.service import ROOT, wait_for
from tests.support.timing import within

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@shared_task(name="tests.look_at")
def look_at(id: str) -> None:
    raise AssertionError("no worker runs in these tests")


@pytest.fixture
def broker(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnValkey]:
    """A Valkey that the test may hurt, as the broker of this process; and no memory of earlier failures."""
    own = OwnValkey(tmp_path / "valkey")
    settings.CELERY_BROKER_URL = own.layout.redis_url().replace("unix://", "redis+socket://", 1)
    monkeypatch.setattr(dispatch, "_producers", cache(dispatch._producers.__wrapped__))
    monkeypatch.setattr(dispatch, "_silent_until", 0.0)
    yield own
    own.signal(signal.SIGCONT)
    own.kill()


def waiting(own: OwnValkey) -> int:
    return int(embedded_valkey.client(own.layout).llen("default"))  # type: ignore[arg-type]


def test_notification_is_sent_only_after_the_commit(broker: OwnValkey) -> None:
    with transaction.atomic(using="us-east-1"):
        dispatch.send(look_at.name, "prj_1", using="us-east-1")
        assert waiting(broker) == 0
    assert waiting(broker) == 1

    class Undo(Exception):
        pass

    def half() -> None:
        with transaction.atomic():
            dispatch.send(look_at.name, "prj_2")
            raise Undo

    with pytest.raises(Undo):
        half()
    assert waiting(broker) == 1


def test_forked_process_can_notify(broker: OwnValkey) -> None:
    """As a web process whose parent sent a notification while it created the demo."""
    assert dispatch.send_now(look_at.name, "prj_1")
    child = multiprocessing.get_context("fork").Process(
        target=lambda: os._exit(0 if dispatch.send_now(look_at.name, "prj_2") else 1)
    )
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert waiting(broker) == 2
    assert dispatch.send_now(look_at.name, "prj_3"), "and the parent goes on"


def test_a_frozen_redis_costs_the_first_sender_little_and_the_next_nothing(broker: OwnValkey) -> None:
    assert dispatch.send_now(look_at.name, "prj_1")
    broker.signal(signal.SIGSTOP)
    begun = time.monotonic()
    assert not dispatch.send_now(look_at.name, "prj_2")
    assert time.monotonic() - begun < within(0.6), "at most 0.3 s"
    begun = time.monotonic()
    for _ in range(20):
        assert not dispatch.send_now(look_at.name, "prj_3")
    assert time.monotonic() - begun < within(0.2)
    broker.signal(signal.SIGCONT)
    wait_for("it sends again", lambda: dispatch.send_now(look_at.name, "prj_4"), dispatch.BREAKER_SECONDS + 2)


def test_a_redis_that_is_gone_fails_nobody_and_is_found_again(broker: OwnValkey) -> None:
    assert dispatch.send_now(look_at.name, "prj_1")
    broker.kill()
    begun = time.monotonic()
    with transaction.atomic():
        dispatch.send(look_at.name, "prj_2")
    assert time.monotonic() - begun < within(0.6)
    broker.start()
    wait_for("it sends again", lambda: dispatch.send_now(look_at.name, "prj_3"), dispatch.BREAKER_SECONDS + 2)
    assert waiting(broker) == 1, "what was sent before died with the server"


def test_worker_that_lost_redis_can_close_its_connection() -> None:
    """What Celery does before it connects again. A notification put back would use the lost connection."""
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue(f"tests-{uuid4().hex}")
        queue.put({"a": "nudge"})
        assert queue.get(timeout=5).payload == {"a": "nudge"}
        queue.channel.connection.client = None  # as Kombu leaves it
        queue.channel.close()


def test_every_task_that_is_sent_by_name_exists() -> None:
    app.loader.import_default_modules()
    sent = set()
    for name in ("accounts", "functions", "platform_site", "projects", "rows", "webhooks"):
        for path in (ROOT / name).rglob("*.py"):
            sent |= set(re.findall(r'"((?:\w+\.tasks|accounts)\.(?!models)[a-z_]+)"', path.read_text()))
    sent = {name for name in sent if ".tasks." in name or name.startswith("accounts.send_")}
    assert {"rows.tasks.make_indexes", "accounts.send_account_email"} <= sent <= set(app.tasks)
