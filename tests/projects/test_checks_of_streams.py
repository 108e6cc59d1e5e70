"""Whether the credentials of streams still hold, asked of many of them together (`rows.changes.credentials`)."""

import time
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client, RequestFactory

from accounts import audit
from accounts.models import ServerKey, User
from accounts.tokens import credentials
from accounts.users import service as user_service
from platform_site.http import cursors
from platform_site.http.errors import RateLimited, Unauthorized
from platform_site.identity.callers import Caller
from platform_site.identity.plans import IP_ADDRESS_LIMITS
from platform_site.redis import client as redis_client
from projects.api import authentication, pending_records
from projects.models import Environment
from rows.api.change_views import _authenticate_again
from rows.changes.credentials import SharedCredential, check_batch
from rows.changes.event_reader import FetchedEvents
from rows.changes.feed import Feed
from rows.changes.positions import Position, digest, seal_of
from rows.changes.streams import Stream
from rows.changes.tasks import Task
from rows.rules.principal import Principal
from tests.projects.conftest import RoundTrips, key_for, token_of
from tests.support.flush import flush_redis

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@dataclass
class Holder:
    """A key, and what a stream that was opened with it knows."""

    environment_id: str
    authenticated: int = 0

    def __post_init__(self) -> None:
        self.credential = credentials.read(f"Bearer {key_for(self.environment_id, 'rows:read')}")
        flush_redis()  # until the mark of a change expires nothing is cached
        for _ in range(2):  # the second one caches what the first one read
            self.caller = self._resolve()
        lookup = authentication.lookup_of(self.credential, None, "required")
        self.shared = SharedCredential(self.authenticate, replace(self.caller, role="former"), lookup)
        self.shared.shared_caller(self.caller)  # another one than before: a check is due

    def _resolve(self) -> Caller:
        return authentication.resolve(RequestFactory().get("/"), self.credential, "required")

    def authenticate(self) -> Caller:
        self.authenticated += 1
        return self._resolve()


@pytest.fixture
def holders(production: Environment) -> list[Holder]:
    made = [Holder(production.pk) for _ in range(12)]
    for each in made:  # `flush_redis` has emptied the cache in between
        for _ in range(2):
            each._resolve()
    return made


def test_many_credentials_are_checked_in_one_round_trip(holders: list[Holder], trips: RoundTrips) -> None:
    trips.reset()
    check_batch([*(each.shared for each in holders), *(each.shared for each in holders)])
    assert trips.counts == (1, 0)
    assert [each.shared.caller() for each in holders] == [each.caller for each in holders]
    check_batch(each.shared for each in holders)
    assert trips.counts == (1, 0), "none is due any more"
    assert not any(each.authenticated for each in holders)


def test_what_a_round_trip_does_not_show_is_checked_alone(holders: list[Holder], trips: RoundTrips) -> None:
    key = ServerKey.objects.get(pk=holders[0].caller.id)
    user_service.revoke_key(key, actor=audit.SYSTEM)
    check_batch(each.shared for each in holders)
    with pytest.raises(Unauthorized):
        holders[0].shared.caller()
    assert [each.shared.caller() for each in holders[1:]] == [each.caller for each in holders[1:]]
    assert [each.authenticated for each in holders] == [1] + [0] * 11


def test_without_records_each_credential_is_checked_alone(holders: list[Holder]) -> None:
    flush_redis()
    check_batch(each.shared for each in holders)
    assert [each.shared.caller() for each in holders] == [each.caller for each in holders]
    assert [each.authenticated for each in holders] == [1] * 12


def test_a_key_that_has_expired_is_refused_though_its_record_is_cached(production: Environment) -> None:
    holder = Holder(production.pk)
    ServerKey.objects.filter(pk=holder.caller.id).update(expires_at=Now() + timedelta(seconds=1))
    flush_redis()
    for _ in range(2):
        holder._resolve()
    time.sleep(1)
    check_batch([holder.shared])
    with pytest.raises(Unauthorized):
        holder.shared.caller()


def test_a_session_that_has_expired_is_checked_alone(production: Environment, alice: User) -> None:
    credential = credentials.read(f"Bearer {token_of(alice)}")
    assert isinstance(credential, credentials.SessionCredential)
    request = RequestFactory().get("/", headers={authentication.HEADER: production.pk})
    flush_redis()
    for _ in range(2):
        caller = authentication.resolve(request, credential, "required")
    lookup, trip = authentication.lookup_of(credential, production.pk, "required"), redis_client.round_trip()
    pending_records.put_on(trip)
    records = [trip.get(lookup.identity_key), trip.get(lookup.environment_key or "")]
    trip.run()
    identity, environment = (record.value for record in records)
    assert authentication.caller_by_records(lookup, identity, environment) == caller
    expired = replace(credential, claims=replace(credential.claims, expires_at=int(time.time())))
    assert authentication.caller_by_records(replace(lookup, credential=expired), identity, environment) is None


def test_streams_learn_of_claims_that_are_equal_for_python(holders: list[Holder]) -> None:
    shared = holders[0].shared
    for claims in ({"vip": True}, {"vip": 1}, {"vip": 1.0}):
        caller = replace(holders[0].caller, claims=claims)
        shared.record_check(caller, time.monotonic())
        assert shared.caller() is caller
    equal = replace(holders[0].caller, claims={"vip": 1.0})
    shared.record_check(equal, time.monotonic())
    assert shared.caller() is caller, "its streams share one object"


@pytest.mark.parametrize("reason", ["not_found", "forbidden"])
def test_a_stream_ends_when_its_request_means_another_environment(holders: list[Holder], reason: str) -> None:
    """As that of an account without `X-Environment`, which has left its only project and is in another one now. Or if
    its caller may not read rows any more."""
    caller, shared = holders[0].caller, holders[0].shared
    assert caller.environment is not None
    principal = Principal.of(caller)
    seal = seal_of(caller.environment, caller, principal, {})
    stream = Stream(caller.environment, caller, principal, [], None, shared, seal, None)
    other = replace(caller, environment=replace(caller.environment, environment_id="env_other"))
    if reason == "forbidden":
        other = replace(caller, scopes=caller.scopes - {"rows:read"})
    shared.record_check(other, time.monotonic())
    Feed("us-east-1")._serve(Task("env_a", None), stream, FetchedEvents("", 0, {}, set(), {}, None))
    assert f'"reason":"{reason}"'.encode() in (stream.queue.take() or b"")
    assert stream.queue.is_closed


def test_an_id_of_an_earlier_release_holds_no_position(production: Environment) -> None:
    """It says nothing of the caller's role: the stream begins with a reset."""
    caller = Holder(production.pk).caller
    assert caller.environment is not None
    seal = seal_of(caller.environment, caller, Principal.of(caller), {})
    position = Position("1:1:", 1, digest(1, ()), until="2:2:", sequence=3)
    assert seal.read(seal.write(position) or "") == position
    former = [position.snapshot, position.timeline, position.generations]
    assert seal.read(cursors.encode("changes", seal.facts, former)) is None
    assert replace(seal, rights="0" * 16).read(seal.write(position) or "") is None


def test_checks_whose_token_has_expired_are_no_refused_requests() -> None:
    """A hundred streams of users behind one IP, whose tokens expire together."""
    flush_redis()
    meta = (("HTTP_AUTHORIZATION", "Bearer expired"), ("REMOTE_ADDR", "203.0.113.9"))
    for _ in range(IP_ADDRESS_LIMITS.refused_requests_per_minute + 1):
        with pytest.raises(Unauthorized):
            _authenticate_again(meta, None)
    answer = Client().get("/v1/projects", headers={"Authorization": "Bearer wrong"}, REMOTE_ADDR="203.0.113.9")
    assert answer.status_code == 401


def test_checks_go_on_when_the_caller_is_over_its_limit(production: Environment, settings: Any) -> None:
    flush_redis()
    authorization = f"Bearer {key_for(production.pk, 'rows:read')}"
    credential = credentials.read(authorization)
    settings.RATE_LIMIT_FACTOR = 0
    authentication.resolve(RequestFactory().get("/"), credential, "required")
    with pytest.raises(RateLimited):
        authentication.resolve(RequestFactory().get("/"), credential, "required")
    meta = (("HTTP_AUTHORIZATION", authorization), ("REMOTE_ADDR", "203.0.113.9"))
    assert _authenticate_again(meta, None).kind == "key"
