"""Users embedded in rows outside of any transaction: the second query, and an unavailable control database."""

from typing import Any

import pytest
from django.db import connections, transaction

from accounts.directory import user_cache
from accounts.models import User
from tests.support.embedded_users import App, document
from tests.support.unavailable import control_unavailable, terminate_connection

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


@pytest.fixture
def app(make_tracker: Any) -> App:
    return App(make_tracker(document()))


def test_one_query_reads_the_users_of_a_page_and_none_without_them(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_cache, "is_version", lambda value: False)
    app.get("alice", "cards?with=owner")
    region = app.tracker.project.cluster
    for path, expected in (
        ("cards", [region]),
        ("cards?with=board", [region]),
        ("cards?with=owner,helper,board.owner", [region, "default"]),
        (f"cards/{app.hers}?with=owner", [region, "default"]),
        (f"cards/{app.his}?with=helper", [region]),  # masked: there is no user to read
        ('cards?with=owner&where={"id":"none"}', [region, region]),  # nothing found: is the schema current?
    ):
        assert app.databases_read(monkeypatch, "alice", path)[1] == expected, path


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


def test_a_lost_connection_or_statement_is_not_noticed(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"cards/{app.hers}?with=owner"
    monkeypatch.setattr(user_cache, "is_version", lambda value: False)
    before = [app.get("alice", path).body for _ in range(3)]
    terminate_connection(connections["default"])
    assert app.get("alice", path).body == before[0]
    app.get("alice", path)
    for _ in range(3):  # psycopg answers a rollback with DEALLOCATE ALL
        with transaction.atomic():
            list(User.objects.filter(pk="usr_none"))
            transaction.set_rollback(True)
        assert app.get("alice", path).body == before[0]
