"""Deliveries to misbehaving receivers: each has a recorded outcome, and no other delivery waits for it."""

import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.conf import LazySettings
from django.db import connections
from django.test import override_settings
from django.utils import timezone

from tests.rows.conftest import Tracker
from tests.support.certificates import Authority
from tests.support.deliveries import deliveries, write_list
from tests.support.receiver import Behave, Receiver, answer, dribble, endless, reset, send, silence
from tests.support.service import wait_for
from tests.support.timing import within
from tests.webhooks.conftest import Post
from webhooks.delivery.circuit_breaker import FAILURE_THRESHOLD
from webhooks.delivery.dispatcher import MAX_THREADS, Dispatcher
from webhooks.models import Attempt, Delivery, Webhook

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]

HEAD = b"HTTP/1.1 200 OK\r\n"
BEHAVIOURS: dict[str, tuple[Behave, bool]] = {
    "no content": (answer("204 No Content"), True),
    "binary body": (answer("200 OK", bytes(range(256)) * 100), True),
    "gzip bomb": (answer("200 OK", gzip.compress(b"\0" * 5_000_000), Content_Encoding="gzip"), True),
    "odd headers": (send(HEAD + b"X-Odd: \xff\xfe\xed\xa0\x80\r\nContent-Length: 0\r\n\r\n"), True),
    "redirect": (answer("302 Found", Location="http://169.254.169.254/"), False),
    "redirect to the public": (answer("308 Permanent Redirect", Location="https://example.com/"), False),
    "too many, absurd": (answer("429 Slow Down", Retry_After="Thu, 01 Jan 99999999999999 00:00:00 GMT"), False),
    "too many, nonsense": (answer("429 Slow Down", Retry_After="soon\xff"), False),
    "garbage": (send(b"\x16\x03\x01 what is this\r\n\r\n"), False),
    "nothing": (send(b""), False),
    "reset": (reset, False),
    "odd error": (send(b"HTTP/1.1 500 \xff\xfe\r\nX: \xff\r\nContent-Length: 3\r\n\r\n\0\xff\0"), False),
    "endless headers": (endless(HEAD, b"X-More: 1\r\n" * 1000), False),
    "interim answers without end": (endless(b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 100), False),
    "half an answer": (send(HEAD + b"Content-Length: 100\r\n\r\nhalf"), False),
    # Its status came: what follows is cut off and changes nothing.
    "endless body": (endless(HEAD + b"\r\n", b"more" * 4096), True),
    "a hundred megabytes": (endless(HEAD + b"Content-Length: 104857600\r\n\r\n", b"\0" * 65536), True),
    "slow headers": (dribble(HEAD + b"X-Slow: " + b"x" * 100, 0.1), False),
    "slow body": (dribble(HEAD + b"Content-Length: 1000\r\n\r\n" + b"x" * 1000, 0.05), False),
    "silence": (silence, False),
}


def test_every_misbehaviour_has_a_recorded_fate(tracker: Tracker, subscribe: Post, settings: LazySettings) -> None:
    """Twenty receivers at once on real sockets, the slow ones among them; the worker grows by none of them."""
    settings.WEBHOOK_TIMEOUT_SECONDS = 2
    made = {}
    before = psutil.Process().memory_info().rss
    with ExitStack() as stack:
        for name, (behave, _) in BEHAVIOURS.items():
            receiver = stack.enter_context(Receiver(behave))
            made[name] = subscribe(url=receiver.url(), events=["lists.insert"])
        with override_settings(WEBHOOK_RETRY_SCHEDULE=(timedelta(0),)):
            write_list(tracker)
            assert Dispatcher(tracker.project.cluster).run(linger=0) == len(BEHAVIOURS)
    assert psutil.Process().memory_info().rss - before < 96 * 2**20  # the figure is 20 MB; receivers live here, too
    for name, (_, arrives) in BEHAVIOURS.items():
        (delivery,) = deliveries(tracker, made[name])
        assert delivery["status"] == ("delivered" if arrives else "exhausted"), (name, delivery)
        assert len(delivery["attempts"]) == 1, name
        assert (delivery["attempts"][0]["error"] is None) == arrives, (name, delivery)
        assert not (delivery["outcome"] or "").startswith("internal"), (name, delivery)
    for attempt in Attempt.objects.using(tracker.project.cluster).all():
        assert len(attempt.response_body) <= 8192
        assert len(str(attempt.response_headers)) < 20_000


def test_tls_that_cannot_be_trusted_gets_nothing(
    tracker: Tracker, subscribe: Post, tmp_path: Path, settings: LazySettings
) -> None:
    settings.WEBHOOK_RETRY_SCHEDULE = (timedelta(0),)
    strangers = Authority(tmp_path)
    with (
        Receiver(tls=strangers.server("127.0.0.1")) as foreign,
        Receiver(tls=strangers.server("127.0.0.1", days=-1)) as expired,
        Receiver(first=lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")) as plain,
    ):
        urls = [foreign.url(), expired.url(), plain.url().replace("http:", "https:")]
        made = [subscribe(url=url, events=["lists.insert"]) for url in urls]
        write_list(tracker)
        assert Dispatcher(tracker.project.cluster).run(linger=0) == len(made)
        assert foreign.requests == expired.requests == []
        assert not any(b"lists.insert" in request for request in plain.requests)
    for webhook in made:
        (delivery,) = deliveries(tracker, webhook)
        assert (delivery["status"], delivery["outcome"][:20]) == ("exhausted", "no secure connection")


def test_name_that_later_resolves_to_private_address_gets_nothing(
    tracker: Tracker, subscribe: Post, receiver: Receiver, settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebinding: public when the webhook is made, loopback when its first attempt connects, public and loopback by turns
    afterwards. The receiver on loopback is a canary."""
    settings.OUTBOUND_ALLOWED_NETWORKS = []
    settings.WEBHOOK_RETRY_SCHEDULE = (timedelta(0),) * 3
    asked: list[str] = []
    true_answer = socket.getaddrinfo

    def rebinding(host: Any, port: Any, *args: Any, **how: Any) -> Any:
        if host != "rebind.example":
            return true_answer(host, port, *args, **how)
        asked.append(host)
        address = "93.184.215.14" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    webhook = subscribe(url=receiver.url(host="rebind.example"), events=["lists.insert"])
    write_list(tracker)
    Dispatcher(tracker.project.cluster).run(linger=0)
    assert receiver.connections == 0
    assert len(asked) == 4, "the name is asked for again at each attempt"
    (delivery,) = deliveries(tracker, webhook)
    assert (delivery["status"], len(delivery["attempts"])) == ("exhausted", 3)
    assert delivery["outcome"] == "the IP address may not be called"
    assert "127.0.0.1" not in str(delivery)


def test_fifty_that_hang_do_not_hold_up_the_one_that_is_quick(
    tracker: Tracker, receiver: Receiver, subscribe: Post
) -> None:
    """Arrival is measured from the answer to the write."""
    using = tracker.project.cluster
    with _hanging(50) as hanging:
        subscribe(events=["lists.insert"])
        Webhook.objects.using(using).bulk_create(
            Webhook(
                environment_id=tracker.environment_id,
                url=each.url(),
                host=f"127.0.0.1:{each.port}",
                events=["lists.insert"],
                sealed_secret=Webhook.objects.using(using).values_list("sealed_secret", flat=True)[0],
            )
            for each in hanging
        )
        with _dispatching(using), ExitStack() as stack:
            for each in hanging:
                stack.callback(each.hang_up)
            took = [_arrival(tracker, receiver, number, timeout=10) for number in range(20)]
    assert sorted(took)[18] < within(1.0), took  # who waited for the others would take 15
    assert sum(len(each.requests) for each in hanging) >= 50  # they were tried, too


def test_hanging_receivers_do_not_delay_one_that_has_answered(
    tracker: Tracker, receiver: Receiver, subscribe: Post
) -> None:
    """Each port counts as a receiver, and a pro environment may have 200 webhooks: unknown to all of a worker's threads
    at once. Those who have shown that they are quick keep some to themselves."""
    using = tracker.project.cluster
    subscribe(events=["lists.insert"])
    with _dispatching(using), ExitStack() as stack:
        _arrival(tracker, receiver, 0, timeout=14)
        secret = Webhook.objects.using(using).values_list("sealed_secret", flat=True)[0]
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2 * MAX_THREADS)]
        Webhook.objects.using(using).bulk_create(
            Webhook(
                environment_id=tracker.environment_id,
                url=f"http://127.0.0.1:{each.getsockname()[1]}/",
                host=f"127.0.0.1:{each.getsockname()[1]}",
                events=["lists.insert"],
                sealed_secret=secret,
            )
            for each in listening
        )
        took = [_arrival(tracker, receiver, number, timeout=14) for number in range(1, 9)]
    assert max(took) < within(1.0), took  # who waited for the others would take 15


def test_a_tenant_that_fails_does_not_close_a_host_to_others(
    tracker: Tracker, receiver: Receiver, subscribe: Post
) -> None:
    """One with a backlog for a shared host, which responds to the other tenant only."""
    using = tracker.project.cluster
    subscribe(events=["lists.insert"])
    with Receiver(reset) as failing:
        other = Webhook.objects.using(using).create(
            environment_id=f"env_{'0' * 26}",
            url=failing.url(),
            host=f"127.0.0.1:{receiver.port}",
            events=["lists.insert"],
            sealed_secret=Webhook.objects.using(using).values_list("sealed_secret", flat=True)[0],
        )
        Delivery.objects.using(using).bulk_create(
            Delivery(
                environment_id=other.environment_id, webhook=other, event_id=f"evt_{number:026}", event_type="x",
                sequence=number, body="{}", next_attempt_at=timezone.now() - timedelta(hours=1),
            )
            for number in range(50)
        )  # fmt: skip
        with _dispatching(using):
            wait_for("its circuit breaker opens", lambda: len(failing.requests) >= FAILURE_THRESHOLD)
            _arrival(tracker, receiver, 0, timeout=4)  # its first cooldown takes 5


@contextlib.contextmanager
def _dispatching(using: str) -> Iterator[None]:
    """A dispatcher at work in a thread of its own."""
    over = threading.Event()
    dispatcher = Dispatcher(using)

    def work() -> None:
        try:
            dispatcher.run(should_stop=over.is_set, linger=60)
        finally:
            connections.close_all()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join(30)
    assert not worker.is_alive()


def _arrival(tracker: Tracker, receiver: Receiver, number: int, *, timeout: float) -> float:
    """Seconds from the answer to the write of list `number` to its arrival; fails after `timeout` seconds."""
    write_list(tracker, f"list {number}")
    committed = time.monotonic()
    while len(receiver.requests) <= number:
        assert time.monotonic() < committed + timeout, "the quick one waits for the others"
        time.sleep(0.005)
    return time.monotonic() - committed


@contextlib.contextmanager
def _hanging(count: int) -> Iterator[list[Receiver]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Receiver(silence)) for _ in range(count)]
