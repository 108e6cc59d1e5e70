"""What it costs to know the caller: an authenticated view that does nothing, beside a bare Django view on the same server.

Requests a second depend on the machine and on who else is using it; the processor time of the server's processes for each
request much less, and their ratio hardly.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from accounts import audit
from accounts.tokens import signing_keys
from accounts.users import service as accounts
from projects.models import Project
from tests.benchmarks import load
from tests.benchmarks.conftest import Served
from tests.projects.conftest import environment_of, key_for, make_project, token_of
from tests.support.flush import flush_redis

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True, databases="__all__")]

ROUNDS = 3
SECONDS = 1.5


@dataclass(frozen=True)
class Figures:
    cpu_us: float
    per_second: float
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return (
            f"{self.per_second:7,.0f}/s  {self.cpu_us:6.0f} µs CPU  "
            f"p50 {self.p50_ms:5.2f} ms  p99 {self.p99_ms:6.2f} ms"
        )


def measure(bench: Served, path: str, token: str | None) -> Figures:
    before = bench.cpu_seconds()
    outcome = load.get(bench.port, path, token=token, seconds=SECONDS)
    assert set(outcome.statuses) == {200}, (path, outcome.statuses)
    used = bench.cpu_seconds() - before
    return Figures(used / outcome.requests * 1e6, outcome.per_second, outcome.percentile(0.5), outcome.percentile(0.99))


def test_an_authenticated_answer_costs_at_most_three_bare_views(bench: Served, report: Callable[[str], None]) -> None:
    signing_keys.forget()  # an earlier test's, whose table is gone
    alice = accounts.create_user(pool_id=None, email="alice@example.com", password=None, actor=audit.SYSTEM)
    production = environment_of(make_project(alice))
    for number in range(24):
        project = Project.objects.create(name=f"P{number}", region="us-east-1", cluster="us-east-1")
        project.memberships.create(user=alice, role="owner")
    token, key = token_of(alice), key_for(production.pk, "projects:read")
    flush_redis()  # no marks of the making
    asked = {
        "bare view": ("/v1/bench/bare", None),
        "nothing, as an account": ("/v1/bench/nothing", token),
        "nothing, as a key in its environment": ("/v1/bench/nothing-somewhere", key),
        "GET /v1/projects, 20 of 25": ("/v1/projects", token),
    }
    for path, who in asked.values():
        load.get(bench.port, path, token=who, seconds=0.3)
    rounds = [{what: measure(bench, path, who) for what, (path, who) in asked.items()} for _ in range(ROUNDS)]
    best = {what: min((each[what] for each in rounds), key=lambda figures: figures.cpu_us) for what in asked}
    bare = best["bare view"].cpu_us
    for what, figures in best.items():
        report(f"{what:38} {figures}  × {figures.cpu_us / bare:.2f}")
    for what in list(asked)[1:3]:
        assert best[what].cpu_us <= 3 * bare
