"""What periodic jobs and lists cost with much history of a tenant: their own pages, whatever other rows there are."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connections
from django.db.models.functions import Now

from platform_site.identity import ids
from projects.models import Project
from projects.provisioning import deletion as project_deletion
from tests.rows.conftest import Tracker
from tests.support.deliveries import deliveries
from tests.support.delivery_queue import counted, forget_statistics, gather_statistics, pile_up
from tests.support.receiver import Receiver
from tests.support.row_statistics import count_touched_rows
from tests.webhooks.conftest import Post
from webhooks.delivery import clock_skew
from webhooks.delivery import retention as delivery_retention
from webhooks.delivery.clock_skew import repair_future_times
from webhooks.models import Delivery, Webhook
from webhooks.subscriptions import deletion

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.django_db(databases="__all__", transaction=True),
    pytest.mark.usefixtures("_nobody_gathers_statistics"),
]

MONTH = timedelta(days=30)
MANY, SOME = 20_000, 3_000
statistics = pytest.mark.parametrize("statistics", [False, True])


@statistics
def test_a_purge_passes_what_may_not_go_once(
    tracker: Tracker, receiver: Receiver, subscribe: Post, monkeypatch: pytest.MonkeyPatch, statistics: bool
) -> None:
    """A suspended project's deliveries wait for months, and are older than all that is over."""
    using = tracker.project.cluster
    monkeypatch.setattr(delivery_retention, "BATCH", 200)
    waiting, over = subscribe(events=["lists.insert"]), subscribe(events=["lists.insert"])
    pile_up(tracker, waiting, MANY, "pending")
    pile_up(tracker, over, 500, "delivered")
    long_ago = ids.earliest("dlv", datetime.now(UTC) - 2 * MONTH)[:14]
    with connections[using].cursor() as cursor:
        for webhook, prefix in ((waiting, "0"), (over, "1")):
            cursor.execute(
                "UPDATE platform.webhooks_delivery SET id = %s || lpad(sequence::text, 6, '0'), created_at = %s"
                " WHERE webhook_id = %s",
                [long_ago + prefix, datetime.now(UTC) - 2 * MONTH, webhook["id"]],
            )
    if statistics:
        gather_statistics(using)
    with count_touched_rows(using) as cost:
        assert delivery_retention.purge(using, older_than=MONTH) == 500
    assert cost.read < 2 * MANY
    assert (counted(tracker, waiting), counted(tracker, over)) == ({"pending": MANY}, {})


@statistics
def test_removing_a_deleted_webhook_reads_what_it_removes(
    tracker: Tracker, receiver: Receiver, subscribe: Post, statistics: bool
) -> None:
    using = tracker.project.cluster
    staying, going = subscribe(events=["lists.insert"]), subscribe(events=["lists.insert"])
    pile_up(tracker, staying, MANY, "delivered")
    pile_up(tracker, going, SOME, "pending")
    Delivery.objects.using(using).filter(webhook_id=going["id"], sequence=7).update(claimed_until=Now() + MONTH)
    if statistics:
        gather_statistics(using)
    assert tracker.delete("owner", f"/webhooks/{going['id']}").status == 204
    Webhook.objects.using(using).filter(pk=going["id"]).update(deleted_at=Now() - timedelta(minutes=2))
    with count_touched_rows(using) as cost:
        assert delivery_retention.remove_deleted(using) == 0
    assert cost.read < 12 * SOME
    assert (counted(tracker, staying), counted(tracker, going)) == ({"delivered": MANY}, {"pending": 1})
    Delivery.objects.using(using).filter(webhook_id=going["id"]).update(claimed_until=Now())
    assert delivery_retention.remove_deleted(using) == 1
    assert counted(tracker, going) == {}


@statistics
def test_forgetting_an_environment_reads_what_it_forgets(
    tracker: Tracker, receiver: Receiver, subscribe: Post, statistics: bool
) -> None:
    """What others have lies before it in the table. Without statistics: not with those that other tests have left."""
    using = tracker.project.cluster
    staying, going = subscribe(events=["lists.insert"]), subscribe(events=["lists.insert"])
    pile_up(tracker, staying, MANY, "delivered")
    Webhook.objects.using(using).filter(pk=staying["id"]).update(environment_id="env_of_others")
    Delivery.objects.using(using).update(environment_id="env_of_others")
    pile_up(tracker, going, MANY // 2, "pending")
    if statistics:
        gather_statistics(using)
    else:
        forget_statistics(using)
    with count_touched_rows(using) as cost:
        deletion.start(tracker.environment_id, using)
        deletion.finish(tracker.environment_id, using)
    assert cost.read < 5 * MANY // 2
    assert (counted(tracker, staying), counted(tracker, going)) == ({"delivered": MANY}, {})


def test_deleting_a_project_with_long_history_is_batched_and_sends_nothing(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Callable[[], int]
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    pile_up(tracker, webhook, SOME, "pending")
    with count_touched_rows(using) as cost:
        path = f"/v1/projects/{tracker.project.pk}"
        assert tracker.api.delete(path, token=tracker.tokens["owner"]).status == 204
    assert cost.read < 5 * deletion.BATCH
    assert counted(tracker, webhook) == {"pending": SOME - deletion.BATCH}
    assert dispatch() == 0
    assert receiver.requests == []
    assert not Project.objects.filter(pk=tracker.project.pk).exists()
    # A notified worker never came.
    Webhook.objects.using(using).filter(pk=webhook["id"]).update(deleted_at=Now() - timedelta(minutes=2))
    assert delivery_retention.remove_deleted(using) == 1
    assert counted(tracker, webhook) == {}


def test_of_a_project_that_is_left_to_a_worker_nothing_is_sent_any_more(
    tracker: Tracker, receiver: Receiver, subscribe: Post, dispatch: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = subscribe(events=["lists.insert"])
    pile_up(tracker, webhook, 10, "pending")
    monkeypatch.setattr(project_deletion, "TABLES_DROPPED_AT_ONCE", 0)
    path = f"/v1/projects/{tracker.project.pk}"
    assert tracker.api.delete(path, token=tracker.tokens["owner"]).status == 204
    assert counted(tracker, webhook) == {"pending": 10}
    assert dispatch() == 0
    assert receiver.requests == []
    assert project_deletion.finish(tracker.project.pk)
    assert counted(tracker, webhook) == {}


@pytest.mark.parametrize("status", Delivery.Status.values)
@pytest.mark.parametrize("backlog", ["delivered", "pending"])
def test_a_list_by_status_reads_its_page(
    tracker: Tracker, receiver: Receiver, subscribe: Post, status: str, backlog: str
) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    pile_up(tracker, webhook, MANY, backlog)
    Delivery.objects.using(using).filter(sequence__lte=3).update(status=status)
    gather_statistics(using)
    with count_touched_rows(using) as cost:
        listed = deliveries(tracker, webhook, f"?status={status}")
    assert cost.read < 200
    newest = range(MANY, MANY - 20, -1) if status == backlog else (3, 2, 1)
    assert [each["event_id"] for each in listed] == [f"evt_{number}" for number in newest]


def test_deliveries_delayed_by_a_wrong_clock_are_fixed_in_pages(
    tracker: Tracker, receiver: Receiver, subscribe: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    using = tracker.project.cluster
    monkeypatch.setattr(clock_skew, "PAGE", 100)
    webhook, other = subscribe(events=["lists.insert"]), subscribe(events=["lists.insert"])
    for each in (webhook, other):
        pile_up(tracker, each, 1_000, "pending")
    of_one = Delivery.objects.using(using).filter(webhook_id=webhook["id"])
    in_three_days = datetime.now(UTC) + timedelta(days=3)
    of_one.filter(sequence__gt=250).update(next_attempt_at=in_three_days, last_attempt_at=in_three_days)
    of_one.filter(sequence=5).update(claimed_until=in_three_days)
    before = list(Delivery.objects.using(using).filter(webhook_id=other["id"]).values_list().order_by("id"))
    assert repair_future_times(using) == 751
    assert repair_future_times(using) == 0
    assert not of_one.filter(next_attempt_at__gt=Now()).exists()
    assert of_one.filter(claimed_until__gt=Now(), claimed_until__lt=Now() + timedelta(minutes=1)).count() == 1
    assert list(Delivery.objects.using(using).filter(webhook_id=other["id"]).values_list().order_by("id")) == before
