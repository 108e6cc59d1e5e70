"""Rate limits: exact counts, correct headers, one IP address per client, and what happens while Redis is
unavailable."""

import itertools
import re
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.http import HttpRequest
from django.test import RequestFactory

from platform_site.http import requests
from platform_site.http.errors import RateLimited
from platform_site.identity.plans import IP_ADDRESS_LIMITS, PLANS
from platform_site.redis import client as redis_client
from platform_site.redis import rate_limits
from tests.support.rate_limits import fresh_identity
from tests.support.timing import within
from tests.support.valkey_server import RedisServer, until


@pytest.fixture(autouse=True)
def slow_valkey_is_no_failure(settings: LazySettings) -> None:
    """A busy machine must not open the breaker: what that does has tests of its own."""
    settings.REDIS_TIMEOUT = 10.0


FREE = PLANS["free"].requests_per_minute
TRIES = PLANS["free"].token_requests_per_minute


def request(address: str = "203.0.113.9", **headers: str) -> HttpRequest:
    return RequestFactory().post("/v1/auth/token", REMOTE_ADDR=address, headers=headers)


def headers_of(one: HttpRequest) -> dict[str, str]:
    return dict(one.__dict__.get("answer_headers", {}).values())


def fresh_address() -> str:
    return fresh_identity(lambda n: f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}")


def fresh_email(pool: str = "") -> str:
    emails: dict[str, str] = {}

    def make(n: int) -> str:
        identity = f"{pool}\0e{n}-{uuid.uuid4().hex}@example.org"
        emails[identity] = identity.partition("\0")[2]
        return identity

    return emails[fresh_identity(make)]


def call(identity: str, plan: str = "free") -> HttpRequest:
    one = request()
    trip = redis_client.round_trip()
    begun = rate_limits.CallerLimit(one, trip, identity)
    assert trip.run()
    begun.settle(plan)
    return one


def passes(act: Callable[[], object]) -> bool:
    try:
        act()
    except RateLimited:
        return False
    return True


def state(headers: dict[str, str]) -> dict[str, tuple[int, int]]:
    """`RateLimit` as {policy: (remaining, seconds)}; the form of draft-ietf-httpapi-ratelimit-headers-10."""
    members = headers["RateLimit"].split(", ")
    found = [re.fullmatch(r'"([a-z-]+)";r=(\d+);t=(\d+)', member) for member in members]
    assert all(found), headers
    return {one[1]: (int(one[2]), int(one[3])) for one in found if one}


def test_every_answer_says_what_is_left() -> None:
    identity = fresh_identity()
    for n in range(1, 4):
        headers = headers_of(call(identity))
        assert headers["RateLimit-Policy"] == f'"caller";q={FREE};w=60'
        remaining, seconds = state(headers)["caller"]
        assert remaining == FREE - n
        assert 1 <= seconds <= 61


def test_the_plan_decides_how_many_and_one_more_is_429() -> None:
    identity = fresh_identity()
    assert all(passes(lambda: call(identity)) for _ in range(FREE))
    one = request()
    trip = redis_client.round_trip()
    begun = rate_limits.CallerLimit(one, trip, identity)
    trip.run()
    with pytest.raises(RateLimited) as told:
        begun.settle("free")
    wait = int(told.value.headers["Retry-After"])
    assert 1 <= wait <= 61
    assert state(headers_of(one))["caller"] == (0, wait)
    assert passes(lambda: call(identity, "pro")), "the same count against the threshold of a larger plan"
    assert passes(lambda: call(fresh_identity())), "another caller"


def test_after_retry_after_the_next_request_passes_and_before_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rate_limits.Counting.__init__.__kwdefaults__, "period", 2)
    email, addresses_ = f"{uuid.uuid4()}@example.org", itertools.count()

    def attempt() -> None:
        rate_limits.count_token_request(request(f"2001:db8:{next(addresses_):x}::1"), email=email)

    while passes(attempt):
        pass
    with pytest.raises(RateLimited) as told:
        attempt()
    promised = time.time() + int(told.value.headers["Retry-After"])
    while not passes(attempt):
        assert time.time() < promised, "it was to pass by then"
        time.sleep(0.02)
    assert time.time() > promised - 2.1


def test_forty_callers_at_once_get_exactly_the_limit() -> None:
    email = fresh_email()
    with ThreadPoolExecutor(40) as pool:
        passed = pool.map(
            lambda n: passes(lambda: rate_limits.count_token_request(request(f"10.9.{n}.1"), email=email)), range(40)
        )
    assert sum(passed) == TRIES


def test_a_password_is_guarded_per_pool_and_email_however_it_is_written() -> None:
    email = fresh_email("env_1")
    for n in range(TRIES):
        written = [email, email.upper(), f" {email} "][n % 3]
        rate_limits.count_token_request(request(f"10.8.{n}.1"), pool_id="env_1", email=written)
    assert not passes(lambda: rate_limits.count_token_request(request("10.8.200.1"), pool_id="env_1", email=email))
    assert passes(lambda: rate_limits.count_token_request(request("10.8.201.1"), pool_id="env_2", email=email))
    assert passes(lambda: rate_limits.count_token_request(request("10.8.202.1"), email=email))


def test_an_address_that_tries_many_emails_is_stopped() -> None:
    address = fresh_address()
    quota = IP_ADDRESS_LIMITS.token_requests_per_minute
    passed = sum(
        passes(lambda n=n: rate_limits.count_token_request(request(address), email=f"{n}-{uuid.uuid4()}@example.org"))  # type: ignore[misc]
        for n in range(quota + 20)
    )
    assert passed == quota
    assert passes(lambda: rate_limits.count_token_request(request(address))), "refreshes are counted apart"


def test_both_policies_are_announced_and_the_longer_wait_counts() -> None:
    one = request(fresh_address())
    rate_limits.count_token_request(one, email=fresh_email())
    assert set(state(headers_of(one))) == {"sign-in", "sign-in-address"}
    assert headers_of(one)["RateLimit-Policy"].count(";q=") == 2


def test_a_request_for_an_email_is_an_attempt_of_its_network() -> None:
    address = fresh_address()
    rate_limits.count_email_request(request(address), kind="sign_up", pool_id=None, email=fresh_email())
    sign_in = request(address)
    rate_limits.count_token_request(sign_in, email=fresh_email())
    assert state(headers_of(sign_in))["sign-in-address"][0] == IP_ADDRESS_LIMITS.token_requests_per_minute - 2


def test_sixty_forwarded_addresses_do_not_help() -> None:
    address, email = fresh_address(), fresh_email()
    passed = sum(
        passes(
            lambda n=n: rate_limits.count_token_request(  # type: ignore[misc]
                request(address, **{"X-Forwarded-For": f"198.51.100.{n}", "X-Real-Ip": f"198.51.100.{n}"}), email=email
            )
        )
        for n in range(60)
    )
    assert passed == TRIES


def test_ipv6_prefix_is_one_client() -> None:
    def network(address: str) -> str:
        return requests.network_of(request(address))

    assert network("2001:db8:1:2::1") == network("2001:db8:1:2:ffff::9") == "2001:db8:1:2::"
    assert network("2001:db8:1:3::1") != network("2001:db8:1:2::1")
    assert network("::ffff:203.0.113.9") == network("203.0.113.9") == "203.0.113.9"
    assert network("fe80::1%eth0") == "fe80::"
    assert network("") == network("/run/web.sock") == requests.UNKNOWN_CLIENT
    assert requests.client_address(request("2001:0db8::0:1")) == "2001:db8::1"
    assert requests.client_address(request("fe80::1%eth0")) == "fe80::1"
    assert requests.client_address(request("")) is None


def test_refused_tokens_are_counted_and_stop_lookups() -> None:
    address = fresh_address()

    def look() -> None:
        trip = redis_client.round_trip()
        refusals = rate_limits.Refusals(request(address), trip)
        assert trip.run()
        refusals.check()

    for _ in range(IP_ADDRESS_LIMITS.refused_requests_per_minute):
        assert passes(look)
        rate_limits.count_refused(request(address))
    assert passes(look), "looking counts nothing"
    assert not passes(lambda: rate_limits.count_refused(request(address)))
    assert not passes(look)


def test_anonymous_requests_are_counted_per_address() -> None:
    address, quota = fresh_address(), IP_ADDRESS_LIMITS.anonymous_requests_per_minute
    passed = sum(passes(lambda: rate_limits.count_anonymous(request(address))) for _ in range(quota + 5))
    assert passed == quota


def test_the_factor_multiplies_every_threshold(settings: LazySettings) -> None:
    settings.RATE_LIMIT_FACTOR = 0.5
    identity, email = fresh_identity(), fresh_email()
    assert sum(passes(lambda: call(identity)) for _ in range(FREE)) == FREE // 2
    tries = (
        passes(lambda: rate_limits.count_token_request(request(fresh_address()), email=email)) for _ in range(TRIES)
    )
    assert sum(tries) == TRIES // 2
    settings.RATE_LIMIT_FACTOR = 1000
    assert passes(lambda: call(identity))
    settings.RATE_LIMIT_FACTOR = 0
    assert passes(lambda: call(fresh_identity())), "never less than one"


def test_two_processes_share_a_count() -> None:
    """Two stores stand for two processes: what counts is in Redis."""
    identity = fresh_identity()
    counts = []
    for n in range(6):
        trip = [redis_client.current(), redis_client.Store(*_address())][n % 2].trip()
        counting = rate_limits.Counting(trip, "caller", identity)
        assert trip.run()
        counts.append(counting.settle(100)[1])
    assert [re.findall(r"r=(\d+)", one) for one in counts] == [[str(100 - n)] for n in range(1, 7)]


def _address() -> tuple[str, float]:
    from django.conf import settings

    return settings.REDIS_URL, settings.REDIS_TIMEOUT


def test_without_redis_callers_pass_and_sign_ins_are_still_limited(settings: LazySettings, tmp_path: Path) -> None:
    settings.REDIS_URL = f"unix://{tmp_path / 'nobody.sock'}"
    until(
        lambda: time.time() % rate_limits.PERIOD < rate_limits.PERIOD - 5
    )  # the window of the limiter in this process
    identity, email = fresh_identity(), fresh_email()
    for _ in range(FREE + 10):
        one, trip = request(), redis_client.round_trip()
        begun = rate_limits.CallerLimit(one, trip, identity)
        assert not trip.run()
        begun.settle("free")
    assert state(headers_of(one))["caller"][0] == FREE
    outcomes = [
        passes(lambda n=n: rate_limits.count_token_request(request(f"10.7.{n}.1"), email=email))  # type: ignore[misc]
        for n in range(TRIES * 2)
    ]
    assert outcomes == [True] * TRIES + [False] * TRIES
    with ThreadPoolExecutor(20) as pool:
        other = fresh_email()
        passed = pool.map(
            lambda n: passes(lambda: rate_limits.count_token_request(request(f"10.6.{n}.1"), email=other)), range(40)
        )
    assert sum(passed) == TRIES


def test_without_redis_emails_are_counted_by_the_hour(settings: LazySettings, tmp_path: Path) -> None:
    settings.REDIS_URL = f"unix://{tmp_path / 'nobody.sock'}"
    email = fresh_email()
    rate_limits.count_email_request(request(fresh_address()), kind="sign_up", pool_id="env_1", email=email)
    counted = {name for _, name in rate_limits._process_limiters[rate_limits.HOUR]._counts}
    assert f"emails\0env_1\0sign_up\0{email}" in counted


def test_a_redis_that_freezes_costs_a_request_no_more_than_the_budget(settings: LazySettings, tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        settings.REDIS_URL = server.url
        settings.REDIS_TIMEOUT = 0.2
        rate_limits.count_token_request(request(fresh_address()), email=fresh_email())
        server.freeze()
        at = time.monotonic()
        for _ in range(20):
            rate_limits.count_token_request(request(fresh_address()), email=fresh_email())
        assert time.monotonic() - at < settings.REDIS_TIMEOUT + within(0.3)
    finally:
        server.kill()


def test_the_process_limiter_is_bounded_in_memory() -> None:
    limiter = rate_limits.ProcessLimiter(period=3600, most=1000)
    for n in range(5000):
        limiter.count(f"k{n}")
        limiter.count("kept busy")
    assert len(limiter._counts) == 1000
    count, wait = limiter.count("kept busy")
    assert count == 5001
    assert 1 <= wait <= 3600


def test_a_counter_keeps_its_name_for_a_window_and_gets_another_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """django-ratelimit names the counter once; what it would say a second later is the same until the window ends."""
    now = 1_800_000_000
    named: list[str] = []
    real = rate_limits.get_usage
    monkeypatch.setattr(
        rate_limits, "get_usage", lambda *args, **more: (named.append(more["group"]), real(*args, **more))[1]
    )
    monkeypatch.setattr(time, "time", lambda: now)

    def counted() -> tuple[int | None, str]:
        trip = redis_client.round_trip()
        counting = rate_limits.Counting(trip, "caller", "usr_of_a_window")
        trip.run()
        return counting._count.value, counting.settle(100)[1]

    first, said = counted()
    left = int(said.rpartition("t=")[2])
    assert first == 1
    assert 1 <= left <= rate_limits.PERIOD
    now += left - 1
    assert counted() == (2, '"caller";r=98;t=1')
    assert named == ["caller"]
    now += 1
    assert counted() == (1, f'"caller";r=99;t={rate_limits.PERIOD}')
    assert named == ["caller", "caller"]


@pytest.mark.parametrize("seconds", [600, 2 * 86400])
def test_a_clock_that_is_set_right_leaves_no_window_in_the_future(
    monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """A host that was ahead, and is set back: a window that it began in the future would count what comes until
    then."""
    identity, right = fresh_identity(), time.time
    monkeypatch.setattr(time, "time", lambda: right() + seconds)
    call(identity)
    monkeypatch.setattr(time, "time", right)
    [(left, until_next)] = state(headers_of(call(identity))).values()
    assert until_next <= rate_limits.PERIOD + 1
    assert left == FREE - 1, "and that window is another"
