"""One project's schemas are planned one at a time in a process, so that threads are left for others."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from django.db import connections

from platform_site.identity.callers import EnvironmentRef
from rows.migrate import computation_slots, service
from rows.migrate.computation_slots import SchemasBusy, in_slot
from rows.migrate.planning import planner
from tests.support.tenants import Tenant

DOCUMENT = {"tables": {"notes": {"columns": {"title": {"type": "text"}}}}}


def environment_of(project_id: str) -> EnvironmentRef:
    return replace(
        EnvironmentRef("env_a", "production", "prj_a", "us-east-1", "us-east-1", "free", "env_a"), project_id=project_id
    )


def test_a_project_has_one_slot_and_leaves_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computation_slots, "WAIT_SECONDS", 0.2)
    begun, release, most = threading.Semaphore(0), threading.Event(), [0, 0]

    @in_slot
    def work(environment: EnvironmentRef) -> str:
        most[0] += 1
        most[1] = max(most)
        begun.release()
        release.wait(20)
        most[0] -= 1
        return "done"

    quick = in_slot(lambda environment: "quick")
    with ThreadPoolExecutor(30) as threads:
        first = threads.submit(work, environment_of("prj_a"))
        assert begun.acquire(timeout=20)
        more = [threads.submit(work, environment_of("prj_a")) for _ in range(20)]
        assert threads.submit(quick, environment_of("prj_b")).result(20) == "quick"
        assert {type(each.exception(20)) for each in more} == {SchemasBusy}
        release.set()
        assert first.result(20) == "done"
        assert work(environment_of("prj_a")) == "done"
    assert most[1] == 1


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_plans_of_one_project_are_made_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computation_slots, "WAIT_SECONDS", 60)
    tenant, make, at_once, most = Tenant(DOCUMENT), planner.plan, [0], [0]

    def noted(*schemas: object) -> object:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        try:
            return make(*schemas)  # type: ignore[arg-type]
        finally:
            at_once[0] -= 1

    monkeypatch.setattr(planner, "plan", noted)

    def rehearse(_: int) -> int:
        try:
            return service.rehearse(tenant.environment, DOCUMENT).version
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(rehearse, range(4))) == [1] * 4
    assert most[0] == 1
