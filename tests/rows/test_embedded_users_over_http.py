"""Users embedded in rows outside of any transaction: the second query, and an unavailable control database."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections, transaction

from accounts.models import User
from platform_site.postgres import prepared
from tests.rows.conftest import Tracker
from tests.support.embedded_users import App, document
from tests.support.unavailable import control_unavailable, terminate_connection

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


@pytest.fixture
def app(make_tracker: Any) -> App:
    return App(make_tracker(document()))


def test_one_query_reads_the_users_of_a_page_and_none_without_them(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    run: Callable[..., Any] = prepared.execute

    def counting(wrapper: Any, *rest: Any) -> Any:
        asked.append(wrapper.alias)
        return run(wrapper, *rest)

    app.get("alice", "cards?with=owner")
    monkeypatch.setattr(prepared, "execute", counting)
    region = app.tracker.project.cluster
    for path, expected in (
        ("cards", [region]),
        ("cards?with=board", [region]),
        ("cards?with=owner,helper,board.owner", [region, "default"]),
        (f"cards/{app.hers}?with=owner", [region, "default"]),
        (f"cards/{app.his}?with=helper", [region]),  # masked: there is no user to read
        ('cards?with=owner&where={"id":"none"}', [region, region]),  # nothing found: is the schema current?
    ):
        asked.clear()
        app.get("alice", path)
        assert asked == expected, path


def test_rows_without_users_are_served_without_the_control_database(app: App) -> None:
    path = f"cards/{app.hers}"
    before = app.get("alice", f"{path}?with=owner").body
    with control_unavailable():
        for asked in (f"{path}?with=owner", "cards?with=owner"):
            answer = app.tracker.get("alice", f"/rows/{asked}")
            assert (answer.status, answer.error) == (503, "unavailable"), answer.json
            assert "Retry-After" in answer.headers
        assert app.get("alice", path).json["id"] == app.hers
    assert app.get("alice", f"{path}?with=owner").body == before


def test_a_lost_connection_or_statement_is_not_noticed(app: App) -> None:
    path = f"cards/{app.hers}?with=owner"
    before = [app.get("alice", path).body for _ in range(3)]
    terminate_connection(connections["default"])
    assert app.get("alice", path).body == before[0]
    app.get("alice", path)
    for _ in range(3):  # psycopg answers a rollback with DEALLOCATE ALL
        with transaction.atomic():
            list(User.objects.filter(pk="usr_none"))
            transaction.set_rollback(True)
        assert app.get("alice", path).body == before[0]


def test_a_new_name_and_a_narrower_document_are_seen_at_once(app: App) -> None:
    tracker: Tracker = app.tracker
    path = f"cards/{app.hers}?with=owner"
    assert app.get("alice", path).json["owner"]["name"] == "alice"
    app.user("alice", name="Alice II")
    assert app.get("alice", path).json["owner"]["name"] == "Alice II"
    tracker.apply(document({"user": ["id"]}))
    assert app.get("alice", path).json["owner"] == {"id": app.users["alice"]}
    tracker.apply(document({}))
    assert app.refused("alice", path)[0] == {"with": "unknown"}
