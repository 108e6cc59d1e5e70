"""Users that a process keeps to embed them in rows: none is shown as it was before a change that was answered."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from accounts import audit
from accounts.directory import user_cache, user_lookup
from accounts.models import User
from accounts.users import service as accounts
from platform_site.concurrency.memo import Memo
from tests.support.embedded_users import App, document
from tests.support.flush import flush_redis
from tests.support.unavailable import control_unavailable

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

AWAY = "unix:///nowhere/valkey.sock"
LIST = "cards?with=owner,board.owner"


@pytest.fixture
def app(make_tracker: Any) -> App:
    return App(make_tracker(document()))


@pytest.fixture
def keep(app: App, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], bytes]:
    return lambda who, path: app.keep_users(monkeypatch, who, path)


def rename(app: App, who: str, name: str) -> None:
    """Behind the service's back: whoever sees it has asked PostgreSQL."""
    assert User.objects.filter(pk=app.users[who]).update(name=name) == 1


def owner_of(app: App, path: str, who: str = "key") -> Any:
    return app.get(who, path).json["owner"]


def test_known_users_are_embedded_as_those_just_read(app: App, keep: Callable[[str, str], bytes]) -> None:
    for path in ("cards?with=owner,helper", LIST, f"cards/{app.hers}?with=owner,board.owner"):
        for who in ("alice", "bob", "key"):
            fresh = app.get(who, path).body
            assert keep(who, path) == fresh, (who, path)
    with control_unavailable():
        assert app.get("key", LIST).body == keep("key", LIST)


@pytest.mark.parametrize("change", [{"name": "Alice II"}, {"email": "alice@elsewhere.example"}, {"role": "editor"}])
def test_a_changed_user_is_seen_in_the_next_request(
    app: App, keep: Callable[[str, str], bytes], change: dict[str, str]
) -> None:
    keep("key", LIST)
    assert app.tracker.patch("owner", f"/users/{app.users['alice']}", change).status == 200
    for _ in range(3):
        [hers, his] = app.get("key", LIST).json["data"]
        for user in (hers["owner"], hers["board"]["owner"], his["board"]["owner"]):
            assert user == {**user, "id": app.users["alice"], **change}


def test_a_user_who_changes_the_own_name_is_seen_by_others(app: App, keep: Callable[[str, str], bytes]) -> None:
    keep("bob", LIST)
    assert app.tracker.patch("alice", "/auth/me", {"name": "Alice II"}).status == 200
    assert app.get("bob", LIST).json["data"][0]["owner"]["name"] == "Alice II"


def test_a_deleted_user_is_null_in_the_next_request(app: App, keep: Callable[[str, str], bytes]) -> None:
    keep("key", LIST)
    assert app.tracker.delete("owner", f"/users/{app.users['bob']}").status == 204
    for _ in range(3):
        assert owner_of(app, f"cards/{app.his}?with=owner") is None


def test_what_rows_never_show_of_a_user_leaves_the_others_known(app: App, keep: Callable[[str, str], bytes]) -> None:
    keep("key", LIST)
    user = User.objects.get(pk=app.users["alice"])
    accounts.change_user(user, actor=audit.SYSTEM, claims={"a": 1}, is_email_verified=True, is_disabled=True)
    with control_unavailable():
        app.get("key", LIST)


def test_a_change_that_was_under_way_during_a_read_is_seen_after_it(
    app: App, keep: Callable[[str, str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read begins before the change and keeps what it found after the change was answered."""
    path = f"cards/{app.hers}?with=owner"
    keep("key", f"cards/{app.his}?with=owner")  # so that alice is still to be read
    read = user_lookup.find_users

    def slowly(*asked: Any) -> Any:
        found = read(*asked)
        with monkeypatch.context() as patch:
            patch.setattr(user_lookup, "find_users", read)
            app.user("alice", name="Alice II")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(user_lookup, "find_users", slowly)
        assert owner_of(app, path)["name"] == "alice"
    for _ in range(3):
        assert owner_of(app, path)["name"] == "Alice II"


def test_readers_beside_an_uncommitted_change_keep_nothing(app: App, keep: Callable[[str, str], bytes]) -> None:
    path = f"cards/{app.hers}?with=owner"
    keep("key", path)
    is_changed, may_commit = threading.Event(), threading.Event()

    def change() -> None:
        try:
            with transaction.atomic():
                app.user("alice", name="Alice II")
                is_changed.set()
                may_commit.wait(20)
        finally:
            transaction.get_connection().close()

    thread = threading.Thread(target=change)
    thread.start()
    assert is_changed.wait(20)
    for _ in range(4):
        assert owner_of(app, path)["name"] == "alice"
    may_commit.set()
    thread.join(20)
    assert owner_of(app, path)["name"] == "Alice II"


def test_a_change_that_dies_before_its_answer_leaves_no_old_user(app: App, keep: Callable[[str, str], bytes]) -> None:
    """A process that dies writes nothing to Redis after its commit: what it wrote before is enough."""
    path = f"cards/{app.hers}?with=owner"
    keep("key", path)
    with transaction.atomic():
        app.user("alice", name="Alice II")
        transaction.set_rollback(True)
    assert owner_of(app, path)["name"] == "alice"
    rename(app, "alice", "Alice III")  # the mark of the change that was undone still stands
    assert owner_of(app, path)["name"] == "Alice III"


def test_nothing_is_known_after_redis_was_emptied(app: App, keep: Callable[[str, str], bytes]) -> None:
    path = f"cards/{app.hers}?with=owner"
    keep("key", path)
    rename(app, "alice", "Alice II")
    assert owner_of(app, path)["name"] == "alice", "what is known is used"
    flush_redis()
    for _ in range(3):
        assert owner_of(app, path)["name"] == "Alice II"


def test_nothing_is_known_while_redis_is_unavailable(app: App, keep: Callable[[str, str], bytes]) -> None:
    path = f"cards/{app.hers}?with=owner"
    keep("key", path)
    with override_settings(REDIS_URL=AWAY):
        for name in ("Alice II", "Alice III"):
            rename(app, "alice", name)
            assert owner_of(app, path)["name"] == name


def test_each_role_sees_its_fields_of_known_users(app: App, keep: Callable[[str, str], bytes]) -> None:
    path = f"cards/{app.hers}?with=owner"
    keep("key", path)
    keep("alice", path)
    assert list(owner_of(app, path, "alice")) == ["id", "name"]
    assert app.refused("page", "cards?with=owner")[0] == {"with": "unknown"}
    app.tracker.apply(document({"user": ["id"], "anonymous": ["name"]}))
    assert owner_of(app, path, "alice") == {"id": app.users["alice"]}
    assert owner_of(app, path, "page") == {"name": "alice"}
    assert app.refused("key", path)[0] == {"with": "unknown"}
    app.tracker.apply(document({}))
    assert app.refused("alice", path)[0] == {"with": "unknown"}


def test_a_hidden_id_stays_null_where_its_user_is_known(app: App, keep: Callable[[str, str], bytes]) -> None:
    keep("alice", "cards?with=owner,helper")
    assert [row["helper"] for row in app.get("alice", "cards?with=helper").json["data"]][1] is None


def test_users_known_in_one_environment_are_strangers_in_another(
    app: App, keep: Callable[[str, str], bytes], make_tracker: Any
) -> None:
    keep("key", LIST)
    other = App(make_tracker(document(), "Other"))
    column, rules = {"type": "text"}, {"server": {"read": {}}}
    notes = {"notes": {"columns": {"author": column}, "rules": rules}}
    other.tracker.apply({"tables": notes})
    note = other.insert("notes", author=app.users["alice"])
    notes["notes"]["columns"]["author"] = {"type": "user", "renamed_from": "author"}
    other.tracker.apply({"tables": notes, "users": {"server": ["name"]}})
    for _ in range(4):
        row = other.get("key", f"notes/{note}?with=author").json
        assert (row["author_id"], row["author"]) == (app.users["alice"], None)


def test_a_change_in_one_environment_leaves_the_users_of_others_known(
    app: App, keep: Callable[[str, str], bytes], make_tracker: Any
) -> None:
    other = App(make_tracker(document(), "Other"))
    keep("key", LIST)
    other.user("alice", name="Alice II")
    with control_unavailable():
        app.get("key", LIST)


def test_what_is_kept_is_bounded(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_cache, "_cache", Memo(1))
    pool_id, ids = app.tracker.environment_id, [user_id.encode() for user_id in app.users.values()]
    for _ in range(5):
        version = user_cache.new_version()
        for _ in range(2):
            assert user_cache.find_cached_users(pool_id, ids, ("name",), version).keys() == set(ids)
        assert len(user_cache._cache) <= 3
