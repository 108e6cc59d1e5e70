"""A run acts with its caller's rights of now, not of its start."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from accounts.models import ServerKey, User
from functions.execution import host_api
from functions.execution.host_api import RunHost
from functions.execution.run_as import restore_caller
from functions.runtime.calls import HostError
from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout
from platform_site.identity.callers import EnvironmentRef
from projects.models import Member
from tests.rows.conftest import Tracker
from tests.support.functions import own_key
from tests.support.unavailable import database_unavailable

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


def host_of(environment: EnvironmentRef, kind: str, caller_id: str) -> RunHost:
    restored = restore_caller(kind, caller_id, environment.environment_id)
    assert restored is not None
    return RunHost(restored.caller, environment, allowed_hosts=(), depth=0)


def a_second_later(host: RunHost) -> None:
    host._looked_up_at -= host_api.RIGHTS_SECONDS


def names(host: RunHost) -> list[str]:
    answer = host.answer("rows.list", b'{"table":"lists"}', seconds=1)
    assert isinstance(answer, bytes)
    return [row["name"] for row in json.loads(answer)["data"]]


ENDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "disabled": ("user", lambda user_id: User.objects.filter(pk=user_id).update(disabled_at="2026-01-01T00:00:00Z")),
    "deleted": ("user", lambda user_id: User.objects.filter(pk=user_id).delete()),
    "key revoked": ("key", lambda key_id: ServerKey.objects.filter(pk=key_id).delete()),
    "member removed": ("account", lambda user_id: Member.objects.filter(user_id=user_id).delete()),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_caller_that_may_no_longer_act_reads_and_writes_nothing_more(
    tracker: Tracker, environment: EnvironmentRef, end: str
) -> None:
    kind, act = ENDS[end]
    viewer = Member.objects.get(project=tracker.project, role=Member.Role.VIEWER).user_id
    caller_id = {
        "user": tracker.users["alice"],
        "key": own_key(tracker, "k", "rows:read", "rows:write"),
        "account": viewer,
    }[kind]
    owned = {"name": "secret", "owner_id": tracker.users["alice"]}
    assert tracker.post("key", "/rows/lists", owned).status == 201
    host = host_of(environment, kind, caller_id)
    assert names(host) == ["secret"]
    act(caller_id)
    a_second_later(host)
    for operation, arguments in (("rows.list", {}), ("rows.insert", {"row": {"name": "late"}})):
        with pytest.raises(HostError) as refused:
            host.answer(operation, json.dumps({"table": "lists", **arguments}).encode(), seconds=1)
        assert refused.value.value["code"] == "forbidden"


def test_lost_scopes_count_a_second_later(tracker: Tracker, environment: EnvironmentRef) -> None:
    key_id = own_key(tracker, "k", "rows:read", "rows:write")
    host = host_of(environment, "key", key_id)
    assert names(host) == []
    ServerKey.objects.filter(pk=key_id).update(scopes=["rows:write"])
    a_second_later(host)
    with pytest.raises(HostError, match="rows:read"):
        names(host)


def test_runs_go_on_without_the_control_database(tracker: Tracker, environment: EnvironmentRef) -> None:
    host = host_of(environment, "user", tracker.users["alice"])
    a_second_later(host)
    control = connections["default"].settings_dict["NAME"]
    with (
        embedded_postgres.connect(Layout(Path(os.environ["DATA_DIR"]))) as superuser,
        database_unavailable(superuser, control),
    ):
        assert names(host) == []
