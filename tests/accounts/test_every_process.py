"""What ends in one web process ends in all of them with the next request: against the service as `up` starts it."""

import re
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import httpx
import pytest

from tests.support.client import Answer, Api
from tests.support.service import Up
from tests.support.timing import within

pytestmark = pytest.mark.served

REQUESTS = 24


def ask_all(served: Up, token: str) -> set[int]:
    """The statuses of many calls over connections of their own, which spread over the web processes."""

    def ask(_: int) -> int:
        with httpx.Client(base_url=served.base_url, timeout=30) as client:
            return client.get("/v1/auth/me", headers={"Authorization": f"Bearer {token}"}).status_code

    with ThreadPoolExecutor(8) as pool:
        return set(pool.map(ask, range(REQUESTS)))


@pytest.fixture
def over_http(served: Up) -> Api:
    return Api(served.base_url)


@pytest.fixture
def sign_in(served: Up, over_http: Api) -> Callable[[], Answer]:
    user = served.facts["app_users"][0]
    body = {"grant_type": "password", "email": user["email"], "password": user["password"]}
    environment = served.facts["environments"]["production"]
    return lambda: over_http.post("/v1/auth/token", json=body, environment=environment)


def test_several_processes_answer(served: Up) -> None:
    assert len(served.web_workers()) >= 2


def test_a_revoked_session_is_401_in_every_process(served: Up, over_http: Api, sign_in: Callable[[], Answer]) -> None:
    token = sign_in().json["access_token"]
    assert ask_all(served, token) == {200}
    assert over_http.post("/v1/auth/revoke", token=token, json={"scope": "current"}).status == 204
    assert ask_all(served, token) == {401}


def left_of(answer: Answer, policy: str) -> int:
    """What is left of the limit."""
    return int(re.findall(rf'"{policy}";r=(\d+)', answer.headers["RateLimit"])[0])


def test_a_repeated_refresh_has_one_successor_and_counts_once(over_http: Api, sign_in: Callable[[], Answer]) -> None:
    """The first is answered on the event loop, each repetition begins there and is answered in a thread."""
    body = {"grant_type": "refresh_token", "refresh_token": sign_in().json["refresh_token"]}
    answers = [over_http.post("/v1/auth/token", json=body) for _ in range(4)]
    assert [answer.status for answer in answers] == [200] * 4
    assert len({answer.json["refresh_token"] for answer in answers}) == 1
    left = [left_of(answer, "refresh") for answer in answers]
    assert [one - other for one, other in pairwise(left)] == [1, 1, 1] or left[-1] > left[0]  # a new minute began


@pytest.mark.parametrize("of_platform", [False, True])
def test_guesses_that_look_like_refreshes_are_counted(served: Up, over_http: Api, of_platform: bool) -> None:
    """They begin on the event loop, too: the repetition in a thread must not be free."""
    where = {} if of_platform else {"environment": served.facts["environments"]["production"]}
    body = {"grant_type": "password", "email": f"guess-{of_platform}@example.com", "password": "refresh_token"}
    answers = [over_http.post("/v1/auth/token", json=body, **where) for _ in range(4)]
    assert [answer.status for answer in answers] == [400] * 4
    left = [left_of(answer, "sign-in") for answer in answers]
    assert [one - other for one, other in pairwise(left)] == [1, 1, 1] or left[-1] > left[0]  # a new minute began


def test_a_revoked_key_is_401_in_every_process(served: Up, over_http: Api) -> None:
    maker = served.facts["server_key"]
    made = over_http.post("/v1/keys", token=maker, json={"name": "short-lived", "scopes": ["rows:read"]}).json
    assert ask_all(served, made["secret"]) == {200}
    assert over_http.delete(f"/v1/keys/{made['id']}", token=maker).status == 204
    assert ask_all(served, made["secret"]) == {401}


def test_twenty_refreshes_over_http_have_one_successor(
    over_http: Api, served: Up, sign_in: Callable[[], Answer]
) -> None:
    token = sign_in().json["refresh_token"]

    def refresh(_: int) -> str:
        body = {"grant_type": "refresh_token", "refresh_token": token}
        answer = Api(served.base_url).post("/v1/auth/token", json=body)
        assert answer.status == 200
        return str(answer.json["refresh_token"])

    with ThreadPoolExecutor(20) as pool:
        assert len(set(pool.map(refresh, range(20)))) == 1


def test_a_storm_of_sign_ins_leaves_room_for_others(served: Up) -> None:
    """40 clients that sign in at once, and one who asks for something else meanwhile.

    A machine that stalls for longer than a request may be queued answers 503 to the queued requests, with the reason.
    """
    environment, key = served.facts["environments"]["production"], served.facts["server_key"]
    is_over = threading.Event()

    def sign_in_again_and_again(number: int) -> set[int]:
        seen = set()
        with httpx.Client(base_url=served.base_url, timeout=60) as client:
            while not is_over.is_set():
                body = {"grant_type": "password", "email": f"{number}@example.com", "password": "wrong"}
                seen.add(client.post("/v1/auth/token", json=body, headers={"X-Environment": environment}).status_code)
        return seen

    def memory() -> int:
        return sum(worker.memory_info().rss for worker in served.web_workers())

    before, growth = memory(), 0
    waits: list[float] = []
    refused = 0
    with ThreadPoolExecutor(40) as pool, httpx.Client(base_url=served.base_url, timeout=60) as client:
        clients = [pool.submit(sign_in_again_and_again, number) for number in range(40)]
        try:
            ends = time.monotonic() + 4
            while time.monotonic() < ends or len(waits) < 10:
                began = time.perf_counter()
                answer = client.get("/v1/auth/me", headers={"Authorization": f"Bearer {key}"})
                waits.append(time.perf_counter() - began)
                refused += answer.status_code == 503
                assert answer.status_code in (200, 503)
                growth = max(growth, memory() - before)
        finally:
            is_over.set()
        assert {400} <= set().union(*(one.result(90) for one in clients)) <= {400, 429, 503}
    assert growth < 450 * 1024 * 1024
    assert refused <= len(waits) // 4
    assert statistics.quantiles(waits, n=20)[18] < within(0.3)
