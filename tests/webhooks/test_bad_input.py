"""What subscriptions refuse, each with its answer; and whose webhooks they are."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from platform_site.identity.plans import plan_limits
from tests.projects.conftest import key_for
from tests.rows.conftest import Tracker
from tests.support.deliveries import write_list
from tests.support.receiver import Receiver
from tests.support.tracker import DOCUMENT
from tests.webhooks.conftest import Post
from webhooks.delivery.relay import relay_batch
from webhooks.managers import WebhookQuerySet
from webhooks.models import Webhook

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

GOOD = {"url": "http://127.0.0.1:9999/hook", "events": ["lists.insert"]}

BAD_VALUES: list[tuple[str, Any]] = [
    ("url", None), ("url", 5), ("url", ""), ("url", "no url"), ("url", ["http://127.0.0.1:9999/"]),
    ("url", "http://127.0.0.1:9999/" + "a" * 3000),
    ("events", None), ("events", "lists.insert"), ("events", []), ("events", [5]), ("events", ["lists.truncate"]),
    ("events", ["lists"]), ("events", ["lists.insert"] * 2), ("events", [f"t{n}.insert" for n in range(51)]),
    ("events", ["a" * 200]), ("events", ["lists.insert; drop"]),
    ("filter", "name = 1"), ("filter", []), ("filter", {"nope": 1}), ("filter", {"name": {"$regexp": "x"}}),
    ("filter", {"name": "x" * 9000}),
    ("columns", ["name"]), ("columns", {"nope": ["id"]}), ("columns", {"lists": "name"}),
    ("columns", {"lists": ["nope"]}), ("columns", {"lists": [None]}), ("columns", {"lists": ["name"] * 500 + [{}]}),
    ("ordering", "random"), ("ordering", None), ("description", 5), ("description", "d" * 501),
    ("enabled", "true"), ("enabled", None), ("colour", "blue"),
]  # fmt: skip

HOSTILE = [
    "ftp://127.0.0.1/", "file:///etc/passwd", "gopher://127.0.0.1:9999/", "javascript:alert(1)", "//127.0.0.1/",
    "http://user:password@127.0.0.1:9999/", "http://127.0.0.1:22/", "http://127.0.0.1:6379/", "http://127.0.0.1:0/",
    "http://127.0.0.1:99999/", "http://2130706433/", "http://0177.0.0.1/", "http://0x7f.1/", "http://127.1/",
    "http://[::1", "http:///hook", "http://exa mple.com/", "http://example.com\r\nX: y/",
]  # fmt: skip
PRIVATE = [
    "http://127.0.0.1:9999/", "http://[::1]:9999/", "http://[::]:9999/", "http://[::ffff:127.0.0.1]:9999/",
    "http://0.0.0.0:9999/", "http://10.0.0.1/", "http://192.168.1.1/", "http://169.254.169.254/latest/meta-data",
    "http://[fe80::1]/", "http://[fd00::1]/", "http://localhost:9999/", "http://[64:ff9b::7f00:1]/",
]  # fmt: skip


def test_unknown_columns_get_suggestions_in_bounded_time(tracker: Tracker) -> None:
    answer = tracker.post("owner", "/webhooks", {**GOOD, "columns": {"tasks": ["list", *["titel"] * 499]}})
    messages = [each["message"] for each in answer.json["error"]["fields"]]
    assert messages[:2] == [f'There is no such column; did you mean "{name}"?' for name in ("list_id", "title")]
    assert messages[-1] == "There is no such column."


def test_each_field_names_what_is_wrong_with_it(tracker: Tracker) -> None:
    made = tracker.post("owner", "/webhooks", GOOD)
    assert made.status == 201, made.json
    for field, value in BAD_VALUES:
        for answer in (
            tracker.post("owner", "/webhooks", {**GOOD, field: value}),
            tracker.patch("owner", f"/webhooks/{made.json['id']}", {field: value}),
        ):
            assert answer.status == 422, (field, value, answer.json)
            assert {name.partition(".")[0] for name in answer.fields} == {field}, (field, value, answer.json)
    for field in GOOD:
        answer = tracker.post("owner", "/webhooks", {name: value for name, value in GOOD.items() if name != field})
        assert (answer.status, answer.fields) == (422, {field: "required"})
    for body in ([], "text", None):
        assert tracker.post("owner", "/webhooks", body).status == 422
    assert tracker.patch("owner", f"/webhooks/{made.json['id']}", {"held": "burn"}).fields.keys() == {"held"}
    recover = f"/webhooks/{made.json['id']}/recover"
    for since in (None, "yesterday", 5, "2026-13-01T00:00:00Z"):
        assert tracker.post("owner", recover, {"since": since}).fields.keys() == {"since"}, since
    for query in ("?status=lost", "?limit=0", "?limit=x", "?cursor=x", "?colour=blue"):
        assert tracker.get("owner", f"/webhooks/{made.json['id']}/deliveries{query}").status == 422, query
    assert Webhook.objects.using(tracker.project.cluster).count() == 1


def test_a_filter_with_a_number_beyond_64_bits_is_shown_as_it_was_sent(make_tracker: Any) -> None:
    tracker: Tracker = make_tracker({"tables": {"stars": {"columns": {"mass": {"type": "float"}}}}})
    new = {**GOOD, "events": ["stars.insert"], "filter": {"mass": {"$gt": 1e20}}}
    made = tracker.post("owner", "/webhooks", new)
    assert made.status == 201, made.json
    shown = tracker.get("owner", f"/webhooks/{made.json['id']}").json
    assert (repr(shown["filter"]), shown["warnings"]) == (repr(new["filter"]), [])


def test_a_table_that_role_server_may_not_read_is_as_unknown_as_any_other(make_tracker: Any) -> None:
    hidden = {"columns": {"body": {"type": "text"}}, "rules": {"server": {"insert": {}}}}
    tracker: Tracker = make_tracker({"tables": {"secrets": hidden}})
    of_hidden, of_unknown = (
        tracker.post("owner", "/webhooks", {**GOOD, "events": [f"{table}.insert"], "filter": {"nope": 1}})
        for table in ("secrets", "nothing")
    )
    assert of_hidden.status == of_unknown.status == 422
    assert of_hidden.json["error"]["fields"] == of_unknown.json["error"]["fields"]
    of_all = tracker.post("owner", "/webhooks", {**GOOD, "events": ["*.insert"], "filter": {"nope": 1}})
    assert of_all.status == 422
    assert "secrets" not in str(of_all.json)


def test_hostile_urls_are_refused_when_they_are_written_down(tracker: Tracker) -> None:
    for url in HOSTILE:
        answer = tracker.post("owner", "/webhooks", {**GOOD, "url": url})
        assert (answer.status, [*answer.fields]) == (422, ["url"]), (url, answer.json)
    made = tracker.post("owner", "/webhooks", GOOD)
    with override_settings(OUTBOUND_ALLOWED_NETWORKS=[]):
        for url in PRIVATE:
            for how in ({}, {"headers": {"Idempotency-Key": "once"}}):
                answer = tracker.post("owner", "/webhooks", {**GOOD, "url": url}, **how)
                assert (answer.status, [*answer.fields]) == (422, ["url"]), (url, answer.json)
            changed = tracker.patch("owner", f"/webhooks/{made.json['id']}", {"url": url})
            assert (changed.status, [*changed.fields]) == (422, ["url"]), (url, changed.json)
    assert tracker.get("owner", f"/webhooks/{made.json['id']}").json["url"] == GOOD["url"]


def test_a_webhook_belongs_to_its_environment_and_to_those_with_the_scope(tracker: Tracker, make_tracker: Any) -> None:
    other = make_tracker(DOCUMENT, "Other", users=())
    made = tracker.post("owner", "/webhooks", GOOD).json
    path = f"/webhooks/{made['id']}"
    for call in (
        other.get("owner", path), other.patch("owner", path, {}), other.delete("owner", path),
        other.post("owner", f"{path}/test", {}), other.post("owner", f"{path}/rotate-secret", {}),
        other.post("owner", f"{path}/recover", {"since": "2026-01-01T00:00:00Z"}),
        other.get("owner", f"{path}/deliveries"), other.post("owner", f"{path}/deliveries/dlv_x/redeliver", {}),
        tracker.post("owner", f"{path}/deliveries/dlv_x/redeliver", {}), tracker.get("owner", "/webhooks/wh_nope"),
    ):  # fmt: skip
        assert call.status == 404, call.json
    for who in ("alice", "key", "reader"):
        assert tracker.get(who, "/webhooks").status == 403, who
        assert tracker.post(who, "/webhooks", GOOD).status == 403, who
    assert tracker.post("viewer", "/webhooks", GOOD).status == 403
    # A key that may make webhooks but not read rows must not make a delivery carry them.
    tracker.tokens["hooks"] = key_for(tracker.environment_id, "webhooks:read", "webhooks:write")
    assert tracker.get("hooks", path).status == 200
    assert tracker.post("hooks", "/webhooks", GOOD).status == 403
    assert tracker.patch("hooks", path, {"columns": None}).status == 403
    for answer in (tracker.get("owner", path), tracker.get("owner", "/webhooks")):
        assert made["secret"] not in str(answer.json)


@pytest.mark.exhaustive
def test_the_quota_holds_when_many_ask_at_once(tracker: Tracker) -> None:
    limit = plan_limits(tracker.project.plan).webhooks_per_environment
    using = tracker.project.cluster
    template = Webhook(environment_id=tracker.environment_id, url=GOOD["url"], host="h:1", events=["*"])
    Webhook.objects.using(using).bulk_create(
        Webhook(environment_id=template.environment_id, url=template.url, host="h:1", events=["*"], sealed_secret=b"x")
        for _ in range(limit - 3)
    )

    def ask(_: int) -> int:
        try:
            return tracker.post("owner", "/webhooks", GOOD).status
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(ask, range(30)))
    assert set(statuses) == {201, 422}, statuses
    assert statuses.count(201) == 3
    assert Webhook.objects.using(using).live(tracker.environment_id).count() == limit


def test_the_list_is_one_query_over_the_health_index(tracker: Tracker, receiver: Receiver, subscribe: Post) -> None:
    using = tracker.project.cluster
    webhook = subscribe(events=["lists.insert"])
    write_list(tracker)
    relay_batch(using)
    with connections[using].cursor() as cursor:
        cursor.execute(
            "INSERT INTO platform.webhooks_delivery (id, environment_id, webhook_id, event_id, event_type, sequence,"
            " depth, body, status, attempts, schedule_from, last_attempt_at, has_succeeded)"
            " SELECT 'dlv_' || n, environment_id, webhook_id, 'evt_' || n, event_type, n, 0, '', 'delivered', 1, 0,"
            " now() - n * interval '1 second', n > 25"
            " FROM platform.webhooks_delivery, generate_series(1, 20000) AS n"
        )
        cursor.execute("ANALYZE platform.webhooks_delivery")
    standing = Webhook.objects.using(using).get()
    Webhook.objects.using(using).bulk_create(
        Webhook(environment_id=standing.environment_id, url=standing.url, host=standing.host, events=standing.events,
                sealed_secret=standing.sealed_secret)
        for _ in range(199)
    )  # fmt: skip
    with CaptureQueriesContext(connections[using]) as queries:
        listed = tracker.get("owner", "/webhooks").json["data"]
    assert len(listed) == 200
    rates = {each["id"]: each["success_rate"] for each in listed}
    assert rates == dict.fromkeys(rates, 1.0) | {webhook["id"]: 0.75}
    assert len([each for each in queries if "webhooks_" in each["sql"]]) == 1
    live: WebhookQuerySet = Webhook.objects.using(using).live(tracker.environment_id)
    plan = live.with_health().explain(analyze=True)
    assert "delivery_health" in plan
    assert "Seq Scan on webhooks_delivery" not in plan, plan


@pytest.mark.parametrize("event", ["function.run.failed", "function.run.succeeded", "*"])
def test_a_key_that_may_not_read_functions_is_told_of_no_run(tracker: Tracker, event: str) -> None:
    """The event of a run carries its error. A webhook of another user must not be redirected elsewhere either."""
    tracker.tokens["hooks"] = key_for(tracker.environment_id, "webhooks:read", "webhooks:write", "rows:read")
    hook = {"url": "https://example.com/hook", "events": ["tasks.insert", event]}
    got = tracker.post("hooks", "/webhooks", hook)
    assert (got.status, got.error) == (403, "forbidden")
    assert "functions:read" in got.json["error"]["message"]
    theirs = tracker.post("owner", "/webhooks", hook).json["id"]
    # Without its events, too: queued deliveries would go to the other URL.
    for changes in ({"url": "https://evil.example/"}, {"events": ["tasks.insert"]}, {"enabled": False}):
        assert tracker.patch("hooks", f"/webhooks/{theirs}", changes).status == 403
    assert tracker.get("owner", f"/webhooks/{theirs}").json["url"] == hook["url"]
    own = tracker.post("hooks", "/webhooks", {**hook, "events": ["tasks.insert", "tasks.*", "*.*"]})
    assert own.status == 201, own.json
    assert tracker.patch("hooks", f"/webhooks/{own.json['id']}", {"events": [event]}).status == 403
    tracker.tokens["both"] = key_for(
        tracker.environment_id, "webhooks:read", "webhooks:write", "rows:read", "functions:read"
    )
    assert tracker.post("both", "/webhooks", hook).status == 201


@pytest.mark.parametrize("event", ["webhook.disabled", "*"])
def test_a_key_that_may_not_read_webhooks_is_sent_no_url_of_others(tracker: Tracker, event: str) -> None:
    """The URL of a webhook may hold a secret. The same holds for functions that run on this event."""
    scopes = ("webhooks:write", "rows:read", "functions:read")
    tracker.tokens["hooks"] = key_for(tracker.environment_id, *scopes)
    hook = {"url": "https://example.com/hook", "events": ["tasks.insert", event]}
    got = tracker.post("hooks", "/webhooks", hook)
    assert (got.status, got.error) == (403, "forbidden")
    assert "webhooks:read" in got.json["error"]["message"]
    theirs = tracker.post("owner", "/webhooks", hook).json["id"]
    assert tracker.patch("hooks", f"/webhooks/{theirs}", {"url": "https://evil.example/"}).status == 403
    own = tracker.post("hooks", "/webhooks", {**hook, "events": ["tasks.insert"]}).json["id"]
    assert tracker.patch("hooks", f"/webhooks/{own}", {"events": [event]}).status == 403
