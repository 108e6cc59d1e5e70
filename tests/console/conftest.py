"""A small platform for the console's own pages: alice's project with rows' events, deliveries and runs written by hand,
since these pages read what others have written."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from accounts.models import User
from functions.models import Function, Run
from platform_site.identity import ids
from projects.models import Environment, Member, Project
from rows.outbox.models import OutboxEvent
from tests.accounts.conftest import make_user  # noqa: F401 - a fixture
from webhooks.models import Attempt, Delivery, Webhook

REGION = "us-east-1"
SECRET_URL = "https://receiver.example/hooks/t0psecret?token=alsosecret"


@pytest.fixture
def boss(make_user: Callable[..., User]) -> User:  # noqa: F811
    return make_user("boss", is_staff=True)


@pytest.fixture
def console(boss: User) -> Client:
    browser = Client()
    browser.force_login(boss)
    return browser


@dataclass
class World:
    """What the tests find again."""

    project: Project
    environment: Environment
    webhook: Webhook
    function: Function

    def event(self, *, request_id: str | None, subject: str = "tasks/tsk_1", **more: Any) -> OutboxEvent:
        values = {
            "type": "tasks.insert",
            "data": '{"record": {"title": "a tenant\'s secret"}}',
            "relayed_at": datetime.now(UTC),
        }
        return OutboxEvent.objects.using(REGION).create(
            event_id=ids.new("evt"),
            environment_id=self.environment.pk,
            subject=subject,
            request_id=request_id,
            **values | more,
        )

    def delivery(self, event: OutboxEvent, *, status: str = "delivered", code: int = 200, **more: Any) -> Delivery:
        delivery = Delivery.objects.using(REGION).create(
            environment_id=event.environment_id,
            webhook=self.webhook,
            event_id=event.event_id,
            event_type=event.type,
            subject=event.subject,
            sequence=event.sequence,
            body=event.data,
            status=status,
            attempts=1,
            **more,
        )
        self.attempt(delivery, code)
        return delivery

    def attempt(self, delivery: Delivery, code: int, *, at: datetime | None = None, number: int = 1) -> Attempt:
        return Attempt.objects.using(REGION).create(
            delivery=delivery,
            number=number,
            at=at or datetime.now(UTC),
            duration_ms=12,
            response_status=code,
            response_body="a receiver's secret",
        )

    def run(self, *, request_id: str | None = None, status: str = "succeeded", **more: Any) -> Run:
        values: dict[str, Any] = {
            "function": self.function,
            "phase": "ended",
            "duration_ms": 40,
            "ended_at": datetime.now(UTC),
            "attempts": 1,
            "input": '"an input\'s secret"',
        }
        return Run.objects.using(REGION).create(
            environment_id=self.environment.pk,
            version=1,
            status=status,
            is_async=False,
            caller_kind="key",
            caller_id=ids.new("key"),
            request_id=request_id,
            **values | more,
        )


@pytest.fixture
def world(make_user: Callable[..., User]) -> World:  # noqa: F811
    alice = make_user("alice")
    project = Project.objects.create(name="Tracker", region=REGION, cluster=REGION)
    Member.objects.create(project=project, user=alice, role="owner")
    environment = Environment(project=project, name="production", status="ready")
    environment.pool_id = environment.pk
    environment.save(force_insert=True)
    webhook = Webhook.objects.using(REGION).create(
        environment_id=environment.pk, url=SECRET_URL, host="receiver.example:443", events=["*"], sealed_secret=b"x"
    )
    function = Function.objects.using(REGION).create(
        environment_id=environment.pk, name="sum", active_version=1, last_version=1, timeout_ms=1000, memory_mb=64
    )
    return World(project, environment, webhook, function)


def minutes_ago(minutes: float) -> datetime:
    return datetime.now(UTC) - timedelta(minutes=minutes)
