"""What happens at the same time: relays side by side, commits in another order, a deletion in mid-flight, wrong clocks.

Faults F3, F15 to F17, F22, F24 and F26 of webhooks, in this process. tests/faults/test_webhooks.py kills processes.
"""

import itertools
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.db import connections, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.test import override_settings
from standardwebhooks import Webhook as Verifier

from platform_site.identity import ids
from rows.outbox.models import OutboxEvent
from tests.rows.conftest import Tracker
from tests.support.deliveries import Dispatch, deliveries, write_list
from tests.support.receiver import Receiver, headers
from tests.support.service import wait_for
from tests.webhooks.conftest import Post, bodies
from webhooks.delivery import circuit_breaker
from webhooks.delivery import queue as delivery_queue
from webhooks.delivery.dispatcher import Dispatcher
from webhooks.delivery.queue import AttemptOutcome, ClaimedDelivery, claim, record
from webhooks.delivery.relay import relay_batch
from webhooks.models import Attempt, Delivery, Webhook

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(databases="__all__", transaction=True)]


@contextmanager
def dispatching(using: str, dispatchers: int = 1) -> Iterator[list[Dispatcher]]:
    """Dispatchers at work, each in a thread of its own, as in workers that run side by side."""
    over = threading.Event()
    made = [Dispatcher(using) for _ in range(dispatchers)]

    def work(dispatcher: Dispatcher) -> None:
        try:
            dispatcher.run(should_stop=over.is_set, linger=600)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(each,), daemon=True) for each in made]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def write_lists(tracker: Tracker, count: int) -> set[str]:
    """The ids of so many new lists, a hundred in a transaction."""
    owner = tracker.users["alice"]
    made = []
    for start in range(0, count, 100):
        body = [{"name": f"list {number}", "owner_id": owner} for number in range(start, min(start + 100, count))]
        made += tracker.post("key", "/rows/lists", body).json["data"]
    return {row["id"] for row in made}


def test_two_workers_deliver_each_event_once(tracker: Tracker, receiver: Receiver, subscribe: Post) -> None:
    subscribe(events=["lists.insert"])
    with dispatching(tracker.project.cluster, 3):
        written = write_lists(tracker, 300)
        wait_for("all arrive", lambda: len(receiver.requests) >= 300)
    assert Counter(body["data"]["id"] for body in bodies(receiver)) == dict.fromkeys(written, 1)
    assert Attempt.objects.using(tracker.project.cluster).count() == 300


def test_event_committed_after_a_later_one_is_still_relayed(
    tracker: Tracker, receiver: Receiver, subscribe: Post
) -> None:
    """Relaying by "the last number seen" would lose nearly all of these."""
    using = tracker.project.cluster
    subscribe(events=["lists.insert"])
    dice = random.Random(17)
    parameters = connections[using].get_connection_params()
    where = {name: parameters[name] for name in ("dbname", "user", "password", "host", "port") if parameters.get(name)}
    insert = (
        "INSERT INTO platform.rows_outboxevent (event_id, environment_id, type, data, depth) VALUES (%s, %s, %s, %s, 0)"
    )
    written = []
    with ExitStack() as stack:
        writers = [stack.enter_context(psycopg.connect(**where)) for _ in range(10)]
        for _ in range(50):
            for writer in writers:
                written.append(ids.new("evt"))
                writer.execute(insert, [written[-1], tracker.environment_id, "lists.insert", '{"list": 1}'])
            for writer in dice.sample(writers, len(writers)):
                writer.commit()
                if dice.random() < 0.5:
                    relay_batch(using)
    relay_batch(using)
    relayed = Delivery.objects.using(using).values_list("event_id", flat=True)
    assert sorted(relayed) == sorted(written)
    assert len(written) == 500
    assert not OutboxEvent.objects.using(using).filter(relayed_at=None).exists()


def test_f16_a_deletion_lets_what_is_in_flight_complete_and_starts_nothing(
    tracker: Tracker, receiver: Receiver, subscribe: Post
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    may_answer = threading.Event()

    def behave(connection: socket.socket) -> bool:
        may_answer.wait(30)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        return True

    receiver.behave = behave
    write_lists(tracker, 50)
    with dispatching(using):
        wait_for("some are in flight", lambda: len(receiver.requests) == circuit_breaker.INITIAL_CONCURRENCY)
        assert tracker.delete("owner", f"/webhooks/{webhook['id']}").status == 204
        may_answer.set()
        recorded = Delivery.objects.using(using).filter(webhook_id=webhook["id"], status="delivered")
        wait_for("they are recorded", lambda: recorded.count() == circuit_breaker.INITIAL_CONCURRENCY)
        other = subscribe(events=["lists.insert"], url=receiver.url("/other"))
        write_list(tracker)
        wait_for("the dispatcher goes on", lambda: len(receiver.requests) > circuit_breaker.INITIAL_CONCURRENCY)
    paths = [request.split(b" ", 2)[1] for request in receiver.requests]
    assert paths == [b"/hook"] * circuit_breaker.INITIAL_CONCURRENCY + [b"/other"], other
    assert (
        Attempt.objects.using(using).filter(delivery__webhook_id=webhook["id"]).count()
        == circuit_breaker.INITIAL_CONCURRENCY
    )


@pytest.mark.parametrize("switch", ["disable", "delete", "another URL"])
def test_after_the_answer_to_a_switch_nothing_starts_that_stood_in_line(
    tracker: Tracker, receiver: Receiver, subscribe: Post, switch: str
) -> None:
    """A quick receiver has four times as many claimed as are under way."""
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    path = f"/webhooks/{webhook['id']}"
    may_answer, lock = threading.Event(), threading.Lock()
    answered, blocked = 0, 0

    def behave(connection: socket.socket) -> bool:
        nonlocal answered, blocked
        with lock:
            is_quick = answered < 200
            answered += is_quick
            blocked += not is_quick
        if not is_quick:
            may_answer.wait(30)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        return True

    receiver.behave = behave
    write_lists(tracker, 500)
    claimed = Delivery.objects.using(using).filter(webhook_id=webhook["id"], claimed_until__gt=Now())
    with dispatching(using):
        wait_for("all its slots are taken", lambda: blocked == circuit_breaker.MAX_CONCURRENCY)
        wait_for("more stand in line", lambda: claimed.count() > 2 * circuit_breaker.MAX_CONCURRENCY)
        if switch == "delete":
            assert tracker.delete("owner", path).status == 204
        elif switch == "disable":
            assert tracker.patch("owner", path, {"enabled": False}).status == 200
        else:
            assert tracker.patch("owner", path, {"url": receiver.url("/other")}).status == 200
        may_answer.set()
        delivered = Delivery.objects.using(using).filter(webhook_id=webhook["id"], status="delivered")
        wait_for("what was under way is recorded", lambda: delivered.count() >= 200 + circuit_breaker.MAX_CONCURRENCY)
        if switch == "another URL":
            wait_for("the others arrive", lambda: delivered.count() == 500)
        wait_for("the queued claims were released", lambda: not claimed.exists())
    paths = Counter(request.split(b" ", 2)[1] for request in receiver.requests)
    others = {b"/other": 500 - 200 - circuit_breaker.MAX_CONCURRENCY} if switch == "another URL" else {}
    assert paths == {b"/hook": 200 + circuit_breaker.MAX_CONCURRENCY, **others}


def test_a_claim_and_a_switch_at_the_same_moment_have_an_order(
    tracker: Tracker, receiver: Receiver, subscribe: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim sees the webhook as it was, and is held up until the switch is over: it takes nothing. A switch that
    comes while a claim is being made waits for it; a claim never waits for a switch."""
    using = tracker.project.cluster
    webhook, other = subscribe(events=["lists.insert"]), subscribe(events=["lists.insert"], url=receiver.url("/other"))
    path = f"/webhooks/{webhook['id']}"
    write_list(tracker)
    relay_batch(using)
    parameters = connections[using].get_connection_params()
    where = {name: parameters[name] for name in ("dbname", "user", "password", "host", "port") if parameters.get(name)}
    slow = (
        delivery_queue.SQL["claim"]
        .replace(
            "sendable_webhooks AS (",
            "held_up AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared(42)), sendable_webhooks AS (",
        )
        .replace("(SELECT webhook_id FROM chosen)", "(SELECT webhook_id FROM chosen, held_up)")
    )
    taken: list[list[ClaimedDelivery]] = []

    def work() -> None:
        try:
            taken.append(_claim_all(using))
        finally:
            connections.close_all()

    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(**where, autocommit=True) as holding, psycopg.connect(**where, autocommit=True) as looking:

        def waits() -> bool:
            found = looking.execute(waiting).fetchone()
            return found is not None and found[0] > 0

        holding.execute("SELECT pg_advisory_lock(42)")
        with monkeypatch.context() as patched:
            patched.setitem(delivery_queue.SQL, "claim", slow)
            claiming = threading.Thread(target=work)
            claiming.start()
            wait_for("the claim has begun", waits)
            assert tracker.patch("owner", path, {"enabled": False}).status == 200
            holding.execute("SELECT pg_advisory_unlock(42)")
            claiming.join(30)
        assert [[each.webhook_id for each in claims] for claims in taken] == [[other["id"]]]

        Delivery.objects.using(using).update(status="pending", claimed_until=None)
        Webhook.objects.using(using).update(enabled=True)
        switched: list[int] = []

        def switch() -> None:
            try:
                switched.append(tracker.patch("owner", path, {"enabled": False}).status)
            finally:
                connections.close_all()

        with transaction.atomic(using=using):
            made = _claim_all(using)
            assert {each.webhook_id for each in made} == {webhook["id"], other["id"]}
            switching = threading.Thread(target=switch)
            switching.start()
            wait_for("the switch waits", waits)
            assert not switched
        switching.join(30)
        assert switched == [200]

        Delivery.objects.using(using).update(status="pending", claimed_until=None)
        Webhook.objects.using(using).update(enabled=True)
        holding.execute("BEGIN")
        holding.execute("SELECT 1 FROM platform.webhooks_webhook WHERE id = %s FOR UPDATE", [webhook["id"]])
        assert [each.webhook_id for each in _claim_all(using)] == [other["id"]], "it is passed by"
        holding.execute("ROLLBACK")
        assert [each.webhook_id for each in _claim_all(using)] == [webhook["id"]]


def test_f15_a_receiver_that_was_down_gets_everything_without_a_stampede(
    tracker: Tracker, subscribe: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit_breaker, "INITIAL_COOLDOWN", 0.2)
    monkeypatch.setattr(circuit_breaker, "MAX_COOLDOWN", 0.5)
    with Receiver() as gone:
        port = gone.port
    webhook = subscribe(events=["lists.insert"], url=f"http://127.0.0.1:{port}/hook")
    schedule = tuple(timedelta(seconds=seconds) for seconds in (0, *[0.5] * 30))
    inside, most, lock = 0, 0, threading.Lock()

    def behave(connection: socket.socket) -> bool:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.01)
        with lock:
            inside -= 1
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        return True

    with override_settings(WEBHOOK_RETRY_SCHEDULE=schedule), dispatching(tracker.project.cluster):
        written = write_lists(tracker, 200)
        tried = Attempt.objects.using(tracker.project.cluster)
        wait_for("it was tried in vain", lambda: tried.count() >= 3)
        with Receiver(behave, port=port) as back:
            wait_for("all arrive", lambda: len(back.requests) >= 200)
            wait_for(
                "all is recorded", lambda: tracker.get("owner", f"/webhooks/{webhook['id']}").json["success_rate"] == 1
            )
    assert Counter(body["data"]["id"] for body in bodies(back)) == dict.fromkeys(written, 1)
    assert most <= circuit_breaker.MAX_CONCURRENCY


@pytest.mark.parametrize("offset", [timedelta(minutes=10), -timedelta(minutes=10)])
def test_worker_with_wrong_clock_signs_and_waits_by_the_database_clock(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch, offset: timedelta
) -> None:  # fmt: skip
    webhook = subscribe(events=["lists.insert"])
    write_list(tracker)
    true_time = time.time
    with monkeypatch.context() as wrong:
        wrong.setattr(time, "time", lambda: true_time() + offset.total_seconds())
        for module in ("attempts", "queue", "retry"):
            wrong.setattr(f"webhooks.delivery.{module}.datetime", _wrong_by(offset))
        assert dispatch() == 1
    sent = headers(receiver.requests[0])
    Verifier(webhook["secret"]).verify(receiver.requests[0].partition(b"\r\n\r\n")[2], sent)
    assert abs(int(sent["webhook-timestamp"]) - true_time()) < 60
    (delivery,) = deliveries(tracker, webhook)
    at = datetime.fromisoformat(delivery["attempts"][0]["at"])
    assert abs(at - datetime.now(UTC)) < timedelta(minutes=1)


def _wrong_by(offset: timedelta) -> type[datetime]:
    class Wrong(datetime):
        @classmethod
        def now(cls, tz: object = None) -> "datetime":  # type: ignore[override]
            return datetime.now(UTC) + offset

    return Wrong


def test_unreadable_secret_delays_no_other_deliveries(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Dispatch
) -> None:
    broken, whole = subscribe(events=["lists.insert"]), subscribe(events=["lists.insert"])
    Webhook.objects.using(tracker.project.cluster).filter(pk=broken["id"]).update(sealed_secret=b"nonsense")
    write_list(tracker)
    assert dispatch() == 2
    assert len(receiver.requests) == 1
    assert [each["status"] for each in deliveries(tracker, whole)] == ["delivered"]
    (parked,) = deliveries(tracker, broken)
    assert (parked["status"], parked["outcome"]) == ("pending", "the signing secret cannot be opened")


def test_outcome_after_its_lease_expired_is_ignored(tracker: Tracker, receiver: Receiver, subscribe: Post) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    write_list(tracker)
    relay_batch(using)
    [stalled] = _claim_all(using, lease=timedelta(0))
    [taken] = _claim_all(using, lease=timedelta(minutes=1))
    assert (stalled.attempt, taken.attempt) == (1, 2)
    late = AttemptOutcome(stalled, stalled.now(), timedelta(seconds=1), "exhausted", response_status=500)
    record(using, [late])
    (delivery,) = deliveries(tracker, webhook)
    assert delivery["status"] == "pending"
    good = AttemptOutcome(taken, taken.now(), timedelta(seconds=1), "delivered", response_status=200)
    record(using, [good])
    record(using, [good])  # a worker that lost its connection records again
    (delivery,) = deliveries(tracker, webhook)
    assert delivery["status"] == "delivered"
    assert [each["response_status"] for each in delivery["attempts"]] == [500, 200]


@pytest.mark.parametrize(
    ("ordering", "lease", "asked_for", "expected"),
    [
        ("none", timedelta(minutes=1), False, "delivered"),
        ("none", timedelta(minutes=1), True, "pending"),  # it was requested once more
        ("row", timedelta(minutes=1), False, "pending"),  # the row's next event would overtake the second attempt
        ("row", timedelta(0), False, "delivered"),  # whose worker has died
    ],
)
def test_stalled_worker_does_not_cause_a_third_attempt(
    tracker: Tracker, subscribe: Post, ordering: str, lease: timedelta, asked_for: bool, expected: str
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"], ordering=ordering)
    write_list(tracker)
    relay_batch(using)
    [stalled] = _claim_all(using, lease=timedelta(0))
    if asked_for:
        Delivery.objects.using(using).update(schedule_from=F("attempts"))
    [taken] = _claim_all(using, lease=lease)
    late = AttemptOutcome(stalled, stalled.now(), timedelta(seconds=1), "delivered", response_status=200)
    record(using, [late])
    (delivery,) = deliveries(tracker, webhook)
    assert delivery["status"] == expected
    # Many receivers say no to what they have seen before.
    refused = AttemptOutcome(taken, taken.now(), timedelta(seconds=1), "exhausted", response_status=409)
    record(using, [refused])
    (delivery,) = deliveries(tracker, webhook)
    assert delivery["status"] == ("delivered" if expected == "delivered" else "exhausted")


def test_an_earlier_event_of_a_row_is_waited_for_in_its_own_environment(tracker: Tracker, subscribe: Post) -> None:
    """A preview branch has rows with the same ids, and so events with the same subjects."""
    using = tracker.project.cluster
    subscribe(events=["lists.insert"], ordering="row")
    row = write_list(tracker)
    relay_batch(using)
    written = OutboxEvent.objects.using(using).get()
    earlier = OutboxEvent.objects.using(using).create(
        sequence=written.sequence - 1, event_id="evt_earlier", type="lists.insert", subject=f"lists/{row}", data="{}",
        environment_id=tracker.environment_id,
    )  # fmt: skip
    assert _claim_all(using) == []
    OutboxEvent.objects.using(using).filter(pk=earlier.pk).update(environment_id="env_of_a_branch")
    assert len(_claim_all(using)) == 1


def test_failed_dispatcher_releases_the_slot_of_the_receiver(
    tracker: Tracker, receiver: Receiver, subscribe: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a receiver with as many attempts in flight as slots would get nothing more from this process."""
    turns = itertools.count()

    def relay_once(using: str) -> object:
        if next(turns) == 1:
            wait_for("all its slots are taken", lambda: len(receiver.requests) == circuit_breaker.INITIAL_CONCURRENCY)
            raise OSError(22, "Invalid argument")
        return relay_batch(using)

    def behave(connection: socket.socket) -> bool:
        may_answer.wait(30)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        return True

    may_answer = threading.Event()
    receiver.behave = behave
    subscribe(events=["lists.insert"])
    written = write_lists(tracker, 10)
    monkeypatch.setattr("webhooks.delivery.dispatcher.relay_batch", relay_once)
    dispatcher = Dispatcher(tracker.project.cluster)
    with override_settings(WEBHOOK_LEASE=timedelta(seconds=1)):
        with pytest.raises(OSError, match="Invalid argument"):
            dispatcher.run()
        may_answer.set()

        def all_arrived() -> bool:
            dispatcher.run(linger=0)
            return {body["data"]["id"] for body in bodies(receiver)} == written

        wait_for("all arrive", all_arrived)


def test_environment_deleted_while_outcomes_are_saved_affects_no_other(
    tracker: Tracker, receiver: Receiver, subscribe: Post
) -> None:
    using = tracker.project.cluster
    subscribe(events=["lists.insert"])
    write_lists(tracker, 2)
    relay_batch(using)
    going, staying = sorted(_claim_all(using, lease=timedelta(minutes=1)), key=lambda each: each.delivery_id)
    results = [
        AttemptOutcome(each, each.now(), timedelta(0), "delivered", response_status=200) for each in (going, staying)
    ]
    parameters = connections[using].get_connection_params()
    where = {name: parameters[name] for name in ("dbname", "user", "password", "host", "port") if parameters.get(name)}

    def record_late() -> None:
        try:
            record(using, results)
        finally:
            connections.close_all()

    with psycopg.connect(**where) as deleting:
        deleting.execute("DELETE FROM platform.webhooks_delivery WHERE id = %s", [going.delivery_id])
        recording = threading.Thread(target=record_late)
        recording.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        with psycopg.connect(**where, autocommit=True) as looking:
            wait_for("it waits for the deletion", lambda: looking.execute(waiting).fetchone() is not None)
        deleting.commit()
        recording.join(30)
    assert Delivery.objects.using(using).get().status == "delivered"
    assert Attempt.objects.using(using).get().delivery_id == staying.delivery_id


def _claim_all(using: str, lease: timedelta | None = None) -> list[ClaimedDelivery]:
    return claim(using, 10, default_slots=10, lease=lease)
