"""Idempotency-Key over HTTP: one effect for each key, in spite of any failure."""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection, connections, transaction
from django.test import RequestFactory
from django.urls import clear_url_caches

from accounts.models import AuditEntry
from platform_site.http import idempotency
from platform_site.http.models import IdempotencyRecord
from platform_site.identity.callers import Caller
from platform_site.security import keyring
from tests.api import idempotent_urls
from tests.api.urls import CALLERS, environment
from tests.support.client import _NOTHING, Answer, Api
from tests.support.timing import within

pytestmark = pytest.mark.django_db(databases="__all__")
OWNER = "alice"
KEY = "8e03978e-40d5-43dd-bc93-6894a57f9324"


@pytest.fixture(autouse=True)
def effects(settings: LazySettings) -> Iterator[None]:
    settings.ROOT_URLCONF = "tests.api.idempotent_urls"
    clear_url_caches()
    scopes = frozenset({"rows:write"})
    CALLERS["alice"] = Caller(kind="account", id="usr_alice", scopes=scopes)
    CALLERS["bob"] = Caller(kind="account", id="usr_bob", scopes=scopes)
    CALLERS["key"] = Caller(kind="key", id="key_1", scopes=scopes, environment=environment())
    CALLERS["branch"] = Caller(
        kind="key", id="key_1", scopes=scopes, environment=environment(environment_id="env_other")
    )
    yield
    idempotent_urls.DURING.clear()
    CALLERS.clear()
    clear_url_caches()


def count() -> int:
    return AuditEntry.objects.filter(action="test.effect").count()


def do(api: Api, path: str = "effects", *, key: str | None = KEY, token: str = OWNER, **how: Any) -> Answer:
    how.setdefault("json", {"name": "one"})
    headers = {} if key is None else {"Idempotency-Key": key}
    return api.request(how.pop("method", "POST"), f"/v1/test/{path}", token=token, headers=headers, **how)


def test_the_second_request_gets_the_first_answer_to_the_byte(api: Api) -> None:
    first, second = do(api), do(api)
    assert first.status == second.status == 201
    assert first.body == second.body
    assert "Idempotency-Replayed" not in first.headers
    assert second.headers["Idempotency-Replayed"] == "true"
    for name in ("Location", "ETag", "Cache-Control", "Content-Type"):
        assert first.headers[name] == second.headers[name]
    assert first.headers["X-Request-Id"] != second.headers["X-Request-Id"], "each request has its own id"
    assert count() == 1


def test_without_a_key_each_request_has_its_effect(api: Api) -> None:
    assert do(api, key=None).json["id"] != do(api, key=None).json["id"]
    assert count() == 2
    assert not IdempotencyRecord.objects.exists()


def test_an_empty_answer_is_replayed_too(api: Api) -> None:
    first, second = (do(api, json={"name": "x", "end": "nothing"}) for _ in range(2))
    assert (first.status, first.body) == (second.status, second.body) == (204, b"")
    assert "Content-Type" not in first.headers
    assert "Content-Type" not in second.headers
    assert count() == 1


def test_another_body_or_query_string_is_refused_and_changes_nothing(api: Api) -> None:
    do(api)
    for answer in (do(api, json={"name": "two"}), do(api, path="effects?with=x")):
        assert answer.status == 422
        assert answer.fields == {"Idempotency-Key": "reused"}
    assert count() == 1


def test_caller_environment_method_path_and_key_tell_requests_apart(api: Api) -> None:
    made = [
        do(api, key=None, token="alice"),
        do(api, token="alice"),
        do(api, token="bob"),
        do(api, token="key"),
        do(api, token="branch"),
        do(api, key="other"),
        do(api, path="effects/one", method="PATCH"),
        do(api, path="effects/two", method="PATCH"),
    ]
    assert [answer.status for answer in made] == [201] * 6 + [200] * 2
    assert count() == 8
    assert not any("Idempotency-Replayed" in answer.headers for answer in made)


def test_requests_differ_by_environment_header_on_shared_paths(api: Api) -> None:
    def in_environment(name: str) -> Answer:
        headers = {"Idempotency-Key": KEY, "X-Environment": name}
        return api.post("/v1/test/effects", token=OWNER, json={"name": "one"}, headers=headers)

    first, other, again = (in_environment(name) for name in ("env_first", "env_other", "env_first"))
    assert first.body == again.body != other.body
    assert again.headers["Idempotency-Replayed"] == "true"
    assert count() == 2


@pytest.mark.parametrize("key", ["", " ", "a" * 256, "a\tb", "a\x7f", "ключ", " a", "a "])
def test_a_malformed_key_is_named_and_nothing_happens(api: Api, key: str) -> None:
    answer = api.request(
        "POST", "/v1/test/effects", token="alice", json={"name": "x"}, headers={"Idempotency-Key": key}
    )
    assert answer.status == 422
    assert answer.fields == {"Idempotency-Key": "malformed"}
    assert count() == 0


@pytest.mark.parametrize("key", ["a", "a" * 255, '"8e03978e-40d5-43dd"', "a b", "!~"])
def test_any_printable_key_will_do(api: Api, key: str) -> None:
    assert do(api, key=key).status == 201
    assert do(api, key=key).headers["Idempotency-Replayed"] == "true"


@pytest.mark.parametrize(("end", "effects_kept"), [("raise", 0), ("return", 2)])
def test_an_error_is_not_kept(api: Api, end: str, effects_kept: int) -> None:
    for _ in range(2):
        answer = do(api, json={"name": "x", "end": end})
        assert answer.status == 409
        assert "Idempotency-Replayed" not in answer.headers
    assert not IdempotencyRecord.objects.exists()
    assert count() == effects_kept, "what raises is rolled back; what returns an error meant what it did"
    assert do(api, json={"name": "fine"}).status == 201, "the key is still free"
    assert do(api, key="other", json={"name": "x", "end": end}).status == 409
    assert do(api, json={"name": "fine"}).headers["Idempotency-Replayed"] == "true", (
        "of other keys nothing is forgotten"
    )


def test_invalid_input_is_not_kept(api: Api) -> None:
    assert do(api, json={"name": ""}).status == 422
    assert do(api, json={"name": "now it is right"}).status == 201
    assert count() == 1


def test_who_may_not_is_told_so_before_the_key_is_looked_at(api: Api) -> None:
    assert do(api).status == 201
    CALLERS["alice"] = Caller(kind="account", id="usr_alice", scopes=frozenset())
    assert do(api).status == 403
    del CALLERS["alice"]
    assert do(api).status == 401


def test_a_record_expires_after_a_day_and_its_key_is_free_again(api: Api) -> None:
    first = do(api)
    record = IdempotencyRecord.objects.get()
    assert abs((record.expires_at - record.created_at).total_seconds() - 24 * 3600) < 1
    with connection.cursor() as cursor:
        cursor.execute("UPDATE api_idempotencyrecord SET expires_at = statement_timestamp() + interval '1 minute'")
        assert do(api, json={"name": "another body"}).fields == {"Idempotency-Key": "reused"}
        cursor.execute("UPDATE api_idempotencyrecord SET expires_at = statement_timestamp()")
    second = do(api, json={"name": "another body"})
    assert second.status == 201
    assert second.json["id"] != first.json["id"]
    assert do(api, json={"name": "another body"}).body == second.body
    assert IdempotencyRecord.objects.count() == 1


def test_nothing_is_left_of_an_expired_record_whose_key_is_used_again() -> None:
    ticket = idempotency.Ticket(b"x" * 32, b"another request", b"")
    for kept in ({"sealed_answer": b"an answer"}, {"reference": "run_1"}):
        IdempotencyRecord.objects.all().delete()
        IdempotencyRecord.objects.create(
            digest=ticket.digest, fingerprint=b"one request", expires_at="2020-01-01T00:00Z", **kept
        )
        assert idempotency.claim(ticket, using="default") is None
        record = IdempotencyRecord.objects.get()
        assert (bytes(record.fingerprint), record.sealed_answer, record.reference) == (b"another request", None, None)


@pytest.mark.parametrize(
    "without", [["hashjoin", "mergejoin", "hashagg", "sort", "material", "indexscan", "bitmapscan"], ["nestloop"], []]
)
def test_expired_records_are_purged_in_batches_and_others_stay(api: Api, without: list[str]) -> None:
    do(api)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE api_idempotencyrecord SET expires_at = statement_timestamp() + interval '1 minute'")
        for method in without:
            cursor.execute(f"SET LOCAL enable_{method} = off")
    IdempotencyRecord.objects.bulk_create(
        IdempotencyRecord(digest=bytes([n]) * 32, fingerprint=b"", expires_at="2020-01-01T00:00Z") for n in range(25)
    )
    assert idempotency.purge_expired(using="default", batch=10) == 25
    assert IdempotencyRecord.objects.count() == 1
    assert do(api).headers["Idempotency-Replayed"] == "true"


def test_periodic_jobs_purge_every_database() -> None:
    from platform_site import tasks

    for alias in connections:
        IdempotencyRecord.objects.using(alias).create(digest=b"x" * 32, fingerprint=b"", expires_at="2020-01-01T00:00Z")
        tasks.purge_idempotency_records(alias)
    assert [IdempotencyRecord.objects.using(alias).count() for alias in connections] == [0] * 4


@pytest.mark.parametrize(("path", "member"), [("effects", "name"), ("public", "email")])
def test_what_is_stored_does_not_let_anybody_guess_a_password_in_the_body(api: Api, path: str, member: str) -> None:
    """A plain hash of the body is tried a billion times a second, where Argon2 is tried thirty times."""
    body = b'{"%s":"correct horse"}' % member.encode()
    assert do(api, path, body=body, json=_NOTHING).status in (201, 202)
    with connection.cursor() as cursor:
        cursor.execute("SELECT r::text FROM api_idempotencyrecord r")
        text = cursor.fetchone()[0]
    fast = hashlib.sha256(b"\0" + body)
    assert fast.hexdigest() not in text
    recognised = "\0".join(["public", fast.hexdigest(), "", KEY, "POST", "/v1/test/public"])
    assert hashlib.sha256(recognised.encode()).hexdigest() not in text


def test_method_and_path_tell_requests_apart() -> None:
    factory = RequestFactory(headers={"Idempotency-Key": KEY})
    requests = [factory.post("/v1/a"), factory.patch("/v1/a"), factory.post("/v1/b"), factory.post("/v1/a")]
    tickets = [idempotency.read_ticket(request, CALLERS["alice"]) for request in requests]
    post, patch, elsewhere, again = [ticket and ticket.digest for ticket in tickets]
    assert len({post, patch, elsewhere}) == 3
    assert again == post


@pytest.mark.parametrize(
    "body",
    [
        b'{"name": "\\u00e9", "end": "commit"}',
        b'{"end":"commit","name":"\xc3\xa9"}',
        b'{\n "end" : "\\u0063ommit",\t"name":"\\u00E9" }\n',
    ],
)
def test_the_same_json_values_in_other_bytes_are_the_same_request(api: Api, body: bytes) -> None:
    first = do(api, json={"name": "é", "end": "commit"})
    assert first.status == 201
    assert do(api, body=body, json=_NOTHING).body == first.body
    assert count() == 1


def test_only_equal_json_values_have_the_same_fingerprint() -> None:
    others = [
        b'{"n":9007199254740993}',
        b'{"n":9007199254740992}',
        b'{"n":"9007199254740993"}',
        b'{"n":9007199254740993.0}',
        b'{"n":[9007199254740993]}',
        b'{"n":1.50}',
        b'{"n":1.5}',
        b'{"n":"1.5"}',
        b"not json",
        b"not  json",
        b"",
        b"null",
        b"[" * 100_000,
        b"9" * 5_000,
    ]
    assert len({idempotency._canonical(body) for body in others}) == len(others)
    assert idempotency._canonical(b' {"b": 1, "a": [ 2 ] }') == idempotency._canonical(b'{"a":[2],"b":1}')


def test_what_is_stored_tells_neither_key_nor_answer(api: Api) -> None:
    do(api)
    with connection.cursor() as cursor:
        cursor.execute("SELECT r::text, sealed_answer FROM api_idempotencyrecord r")
        text, sealed = cursor.fetchone()
    assert "whsec" not in text
    assert b"whsec" not in bytes(sealed)
    assert KEY.encode().hex() not in text
    # Not even with the platform's keys at hand: the Idempotency-Key is needed, too.
    inner = keyring.unseal(bytes(sealed), purpose=idempotency.PURPOSE)
    assert b"whsec" not in inner
    assert b"whsec" in keyring.unseal_under(KEY.encode(), inner, purpose=idempotency.PURPOSE)


def test_response_whose_encryption_key_is_gone_is_a_conflict(api: Api, settings: LazySettings) -> None:
    do(api)
    settings.ENCRYPTION_KEYS = ["ab" * 32]
    answer = do(api)
    assert answer.status == 409
    assert count() == 1


def test_records_live_in_the_region_of_the_effect(api: Api) -> None:
    with connections["us-east-1"].cursor() as cursor:
        cursor.execute("CREATE TABLE platform.test_effects (id bigint GENERATED ALWAYS AS IDENTITY)")
    first, second = do(api, "region", token="key"), do(api, "region", token="key")
    assert first.body == second.body
    assert second.headers["Idempotency-Replayed"] == "true"
    assert IdempotencyRecord.objects.using("us-east-1").count() == 1
    assert IdempotencyRecord.objects.using("default").count() == 0
    # An unknown environment: no database, no record; the action itself reports the error.
    assert do(api, "region", token="alice").status == 500


def test_a_reference_answers_for_a_long_effect(api: Api) -> None:
    first, second = do(api, "invoke"), do(api, "invoke")
    assert first.json["run_id"] == second.json["run_id"]
    assert (first.json["again"], second.json["again"]) == (False, True)
    assert do(api, "invoke", json={"name": "other"}).fields == {"Idempotency-Key": "reused"}
    assert count() == 1
    assert do(api, "invoke", key="other").json["run_id"] != first.json["run_id"]
    assert do(api, "invoke").json == second.json


def test_anonymous_callers_with_the_same_key_are_separate(api: Api) -> None:
    first = api.post("/v1/test/public", json={"email": "a@x"}, headers={"Idempotency-Key": "1"})
    other = api.post("/v1/test/public", json={"email": "b@x"}, headers={"Idempotency-Key": "1"})
    again = api.post("/v1/test/public", json={"email": "a@x"}, headers={"Idempotency-Key": "1"})
    assert first.status == other.status == again.status == 201
    assert first.body == again.body != other.body
    assert count() == 2
    headers = {"Idempotency-Key": "1", "X-Environment": "env_01k60000000000000000000000"}
    elsewhere = api.post("/v1/test/public", json={"email": "a@x"}, headers=headers)
    assert elsewhere.body != first.body
    assert count() == 3


# ── With real commits ──


def in_thread(act: Callable[[], Answer]) -> Answer:
    try:
        return act()
    finally:
        connections.close_all()


@pytest.mark.exhaustive
@pytest.mark.django_db(transaction=True, databases="__all__")
def test_twins_in_flight_have_one_effect_and_one_answer() -> None:
    keys = [f"key-{n}" for n in range(12)]
    with ThreadPoolExecutor(8) as pool:
        tries = [
            (key, pool.submit(in_thread, lambda key=key: do(Api(), key=key)))  # type: ignore[misc]
            for key in keys
            for _ in range(6)
        ]
        answers: dict[str, list[Answer]] = {key: [] for key in keys}
        for key, done in tries:
            answers[key].append(done.result(30))
    for key in keys:
        assert {answer.status for answer in answers[key]} == {201}, key
        assert len({answer.body for answer in answers[key]}) == 1, key
        assert sum("Idempotency-Replayed" in answer.headers for answer in answers[key]) == 5
    assert count() == len(keys)


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_twin_that_waits_too_long_is_told_to_come_back() -> None:
    began, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        may_end.wait(20)

    idempotent_urls.DURING.append(hold)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(in_thread, lambda: do(Api()))
        assert began.wait(10)
        idempotent_urls.DURING.clear()
        at = time.monotonic()
        twin = pool.submit(in_thread, lambda: do(Api())).result(20)
        waited = time.monotonic() - at
        other_body = pool.submit(in_thread, lambda: do(Api(), key="another")).result(20)
        may_end.set()
        done = first.result(20)
    assert twin.status == 409
    assert twin.headers["Retry-After"] == "1"
    assert 1 < waited < within(3)
    assert done.status == other_body.status == 201
    assert do(Api()).body == done.body
    assert count() == 2


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_the_twin_of_a_request_that_fails_goes_on_as_the_first() -> None:
    began, may_end = threading.Event(), threading.Event()

    def fail() -> None:
        idempotent_urls.DURING.clear()
        began.set()
        may_end.wait(20)
        raise RuntimeError("on purpose")

    idempotent_urls.DURING.append(fail)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(in_thread, lambda: do(Api()))
        assert began.wait(10)
        twin = pool.submit(in_thread, lambda: do(Api()))
        _until(_someone_waits_for_a_lock)
        may_end.set()
        assert first.result(20).status == 500
        assert twin.result(20).status == 201
    assert count() == 1


def _someone_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return bool(cursor.fetchone()[0])


def _until(holds: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


@pytest.mark.exhaustive
@pytest.mark.django_db(transaction=True, databases="__all__")
def test_crash_at_any_step_leaves_no_effect_or_a_replayable_one() -> None:
    """F19: 200 requests whose process is killed between effect and commit, or between commit and answer, then
    retried."""
    points = [idempotent_urls.die, lambda: transaction.on_commit(idempotent_urls.die)]
    api = Api()
    assert do(api, key=None, json={"name": ""}).status == 422  # loads what every child would have to load for itself
    connections.close_all()
    children: list[int] = []
    for n in range(200):
        child = os.fork()
        if child == 0:
            try:
                idempotent_urls.DURING.append(points[n % 2])
                do(api, key=f"key-{n}", json={"name": f"{n}"})
            finally:
                os._exit(0)
        children.append(child)
        if len(children) == 8:
            _reap(children)
    _reap(children)
    assert count() == 100, "those that were killed after the commit"
    for n in range(200):
        again = do(api, key=f"key-{n}", json={"name": f"{n}"})
        assert again.status == 201
        assert ("Idempotency-Replayed" in again.headers) == (n % 2 == 1)
        assert again.json["id"] == AuditEntry.objects.get(action="test.effect", detail={"name": f"{n}"}).pk
    assert count() == 200


def _reap(children: list[int]) -> None:
    while children:
        _, status = os.waitpid(children.pop(), 0)
        assert os.WIFSIGNALED(status), "the child was to be killed on its way"
