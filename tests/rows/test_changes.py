"""`POST /v1/changes` of the whole service, over real sockets. docs/reference/live-changes.md."""

import contextlib
import copy
import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.support.live_changes import DOCUMENT, READY, TASKS, App, Live
from tests.support.service import Up, wait_for
from tests.support.timing import within


@pytest.fixture(scope="module")
def app(served: Up) -> Iterator[App]:
    app = App(served)
    yield app
    app.close()


def task(app: App, who: str | None = "ada", **values: Any) -> Any:
    owner = None if who is None else app.users[who]
    return app.put("tasks", **({"title": "T", "owner_id": owner} | values))


def row(shown: Any, subscription: str = "tasks") -> tuple[str, Any]:
    return "row", {"subscription": subscription, "id": shown["id"], "row": shown}


def gone(row_id: str, subscription: str = "tasks") -> tuple[str, Any]:
    return "gone", {"subscription": subscription, "id": row_id}


def seen(app: App, who: str, row_id: str, table: str = "tasks") -> Any:
    return app.ok(who, "GET", f"/rows/{table}/{row_id}")


def test_a_stream_shows_what_its_caller_may_read(app: App) -> None:
    with app.live("ada") as hers, app.live("bob") as others:
        assert hers.response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert hers.response.headers["Cache-Control"] == "no-store"
        assert hers.response.headers["X-Accel-Buffering"] == "no"
        assert hers.next() == others.next() == READY
        made = app.ok("ada", "POST", "/rows/tasks", title="New", amount="1.50")
        assert hers.next() == row(made)
        changed = app.ok("ada", "PATCH", f"/rows/tasks/{made['id']}", rank=2**60)
        assert hers.next() == row(changed)
        app.ok("ada", "DELETE", f"/rows/tasks/{made['id']}")
        assert hers.next() == gone(made["id"])
        assert others.is_silent()


def test_a_row_enters_and_leaves_through_the_rule(app: App) -> None:
    with app.live("ada") as hers, app.live("bob") as his:
        assert hers.next() == his.next() == READY
        made = task(app)
        assert hers.next() == row(seen(app, "ada", made["id"]))
        app.change("tasks", made["id"], owner_id=app.users["bob"])
        assert hers.next() == gone(made["id"])
        assert his.next() == row(seen(app, "bob", made["id"]))


def test_a_row_enters_and_leaves_through_the_filter(app: App) -> None:
    asked = {"top": {"table": "tasks", "where": {"rank": {"$gte": 5}}, "columns": "title"}}
    with app.live("ada", asked) as stream:
        assert stream.next() == READY
        made = task(app, rank=1)
        app.change("tasks", made["id"], rank=2, title="Low")
        app.change("tasks", made["id"], rank=5)
        assert stream.next() == row({"id": made["id"], "title": "Low"}, "top")
        app.change("tasks", made["id"], rank=6)  # no column that is shown
        app.change("tasks", made["id"], rank=4)
        assert stream.next() == gone(made["id"], "top")
        app.change("tasks", made["id"], title="Lower")
        assert stream.is_silent()


def test_what_was_visible_in_between_is_taken_back(app: App) -> None:
    """Changes that are read together: a client may have listed its rows between them."""
    made = task(app, title="A")
    with app.live("ada") as stream:
        assert stream.next() == READY
        change = {"op": "update", "table": "tasks", "id": made["id"]}
        new = {"op": "insert", "table": "tasks", "name": "new", "values": {"title": "N", "owner_id": app.users["ada"]}}
        results = app.ok("server", "POST", "/batch", operations=[
            new, {"op": "delete", "table": "tasks", "id": {"$ref": "new.id"}},
            {**change, "values": {"title": "B"}}, {**change, "values": {"title": "A"}},
        ])["results"]  # fmt: skip
        assert stream.next() == gone(results[0]["row"]["id"])
        assert stream.next() == row(seen(app, "ada", made["id"]))
        assert stream.is_silent()


def test_a_change_of_a_hidden_column_is_no_event(app: App) -> None:
    made = task(app)
    asked = {"tasks": {"table": "tasks", "columns": "title,rank"}}
    with app.live("ada", asked) as stream:
        assert stream.next() == READY
        app.change("tasks", made["id"], secret="s")
        assert stream.is_silent()
        app.change("tasks", made["id"], title="Other", secret="t")
        shown = stream.next()
        assert shown == row({"id": made["id"], "title": "Other", "rank": None})


def test_a_key_sees_all_and_a_visitor_what_its_rule_shows(app: App) -> None:
    with app.live("server") as key, app.live("page") as visitor:
        assert key.next() == visitor.next() == READY
        made = task(app, None, rank=1, secret="s")
        assert key.next() == row(made)
        assert visitor.next() == row({"id": made["id"], "title": "T", "rank": 1})
        app.change("tasks", made["id"], rank=2)
        assert key.next()[0] == "row"
        assert visitor.next() == gone(made["id"])


def test_a_rule_with_relations(app: App) -> None:
    """The row itself is decided exactly. A change of related rows that may open or close rows is a reset."""
    team = app.put("teams", name="Red")
    with app.live("ada", {"notes": {"table": "notes"}}) as stream:
        assert stream.next() == READY
        app.put("notes", body="Before", team_id=team["id"])
        assert stream.is_silent()
        member = app.put("members", team_id=team["id"], member_id=app.users["ada"])
        assert stream.next() == ("reset", {"subscription": "notes"})
        note = app.put("notes", body="Now", team_id=team["id"])
        assert stream.next() == row(seen(app, "ada", note["id"], "notes"), "notes")
        app.change("members", member["id"], label="of no rule")
        app.change("teams", team["id"], note="of no rule")
        app.change("notes", note["id"], body="Later")
        assert stream.next() == row(seen(app, "ada", note["id"], "notes"), "notes")
        app.ok("server", "DELETE", f"/rows/notes/{note['id']}")
        assert stream.next() == gone(note["id"], "notes")
        app.ok("server", "DELETE", f"/rows/members/{member['id']}")
        assert stream.next() == ("reset", {"subscription": "notes"})
        app.put("notes", body="After", team_id=team["id"])
        assert stream.is_silent()


def test_filter_through_a_relation_respects_read_rules(app: App) -> None:
    """The post can be read; the team that the filter asks about, by members alone."""
    team = app.put("teams", name="Blue")
    with app.live("ada", {"posts": {"table": "posts", "where": {"team.name": "Blue"}}}) as stream:
        assert stream.next() == READY
        app.put("posts", team_id=team["id"])
        assert stream.is_silent()
        app.put("members", team_id=team["id"], member_id=app.users["ada"])
        assert stream.next() == ("reset", {"subscription": "posts"})
        later = app.put("posts", team_id=team["id"])
        assert stream.next() == row(seen(app, "ada", later["id"], "posts"), "posts")
        app.change("teams", team["id"], name="Green")
        assert stream.next() == ("reset", {"subscription": "posts"})


def test_several_subscriptions_and_their_own_names(app: App) -> None:
    asked = {"one": {"table": "tasks", "where": {"rank": 1}}, "two": {"table": "tasks", "columns": "rank"}}
    with app.live("ada", asked) as stream:
        assert stream.next() == READY
        made = task(app, rank=1)
        assert {stream.next()[1]["subscription"], stream.next()[1]["subscription"]} == {"one", "two"}
        app.ok("server", "DELETE", f"/rows/tasks/{made['id']}")


def test_after_a_break_it_goes_on_where_it_was(app: App) -> None:
    kept, lost = task(app), task(app)
    with app.live("ada") as stream:
        assert stream.next() == READY
        app.change("tasks", kept["id"], title="Seen")
        stream.next()
    app.change("tasks", kept["id"], title="Missed")
    app.ok("server", "DELETE", f"/rows/tasks/{lost['id']}")
    made = task(app, title="New")
    with app.live("ada", last_id=stream.last_id) as again:
        got = sorted([again.next() for _ in range(3)], key=str)
        expected = [row(seen(app, "ada", kept["id"])), gone(lost["id"]), row(seen(app, "ada", made["id"]))]
        assert got == sorted(expected, key=str)
        assert again.is_silent()
    with app.live("ada", last_id=again.last_id) as third:
        assert third.is_silent(), "nothing twice"


def test_a_position_is_of_one_caller_and_its_subscriptions(app: App) -> None:
    with app.live("ada") as stream:
        assert stream.next() == READY
        time.sleep(0.1)
    assert stream.last_id
    for who, subscriptions, last_id in (
        ("bob", TASKS, stream.last_id),
        ("ada", {"tasks": {"table": "tasks", "where": {"rank": 1}}}, stream.last_id),
        ("ada", TASKS, stream.last_id[:-3] + "AAA"),
        ("ada", TASKS, "x"),
        ("ada", TASKS, "\xe9".encode("latin-1")),
    ):
        assert app.refused(who, subscriptions, last_id) == (422, {"Last-Event-ID": "invalid_position"})  # type: ignore[arg-type]


def nested(depth: int) -> Any:
    return {"rank": 1} if depth == 0 else {"$not": nested(depth - 1)}


@pytest.mark.parametrize(
    ("subscriptions", "status", "fields"),
    [
        ({}, 422, {"subscriptions": "invalid"}),
        ([], 422, {"subscriptions": "invalid"}),
        ({f"s{n}": {"table": "tasks"} for n in range(21)}, 422, {"subscriptions": "invalid"}),
        ({"a-b": {"table": "tasks"}}, 422, {"subscriptions.a-b": "invalid"}),
        ({"a": {}}, 422, {"subscriptions.a": "invalid"}),
        ({"a": {"table": "tasks", "order": "id"}}, 422, {"subscriptions.a.order": "unknown_field"}),
        ({"a": {"table": "tasks", "where": {"nme": 1}}}, 422, {"subscriptions.a.where": "unknown"}),
        ({"a": {"table": "tasks", "where": {"secret": "s"}}}, 422, {"subscriptions.a.where": "unknown"}),
        ({"a": {"table": "tasks", "columns": "secret"}}, 422, {"subscriptions.a.columns": "unknown"}),
        ({"a": {"table": "tasks", "where": {"rank": 2**70}}}, 422, {"subscriptions.a.where": "out_of_range"}),
        ({"a": {"table": "tasks", "where": {"$not": nested(12)}}}, 422, {"subscriptions.a.where": "too_deep"}),
        ({"a": {"table": "tasks", "columns": 2**70}}, 422, {"subscriptions.a.columns": "wrong_type"}),
        ({"a": {"table": "posts", "with": "teem"}}, 422, {"subscriptions.a.with": "unknown"}),
        ({"a": {"table": "posts", "with": ["team"]}}, 422, {"subscriptions.a.with": "wrong_type"}),
        ({"a": {"table": "tasks", "with": "owner"}}, 422, {"subscriptions.a.with": "unknown"}),
        ({"a": {"table": "members"}}, 404, {}),
        ({"a": {"table": "missing"}}, 404, {}),
    ],
)
def test_bad_input(app: App, subscriptions: Any, status: int, fields: dict[str, str]) -> None:
    assert app.refused("ada", subscriptions) == (status, fields)


def test_a_change_of_rules_is_a_reset_under_the_new_ones(app: App) -> None:
    made = task(app, "bob")
    with app.live("ada") as stream:
        assert stream.next() == READY
        opened = copy.deepcopy(DOCUMENT)
        opened["tables"]["tasks"]["rules"]["user"]["read"] = {}
        app.ok("owner", "PUT", "/schema", document=opened)
        assert stream.next() == ("reset", {"subscription": "tasks"})
        app.change("tasks", made["id"], title="Open")
        assert stream.next() == row(seen(app, "ada", made["id"]))
        app.ok("owner", "PUT", "/schema", document=DOCUMENT)
        assert stream.next() == ("reset", {"subscription": "tasks"})
        app.change("tasks", made["id"], title="Closed")
        assert stream.is_silent()


def test_a_change_of_role_is_a_reset_with_the_new_rights(app: App) -> None:
    made = task(app, "bob")
    with app.live("ada") as stream:
        assert stream.next() == READY
        app.ok("owner", "PATCH", f"/users/{app.users['ada']}", role="editor")
        assert stream.next() == ("reset", {"subscription": "tasks"})
        app.change("tasks", made["id"], title="An editor sees it")
        assert stream.next() == row(seen(app, "ada", made["id"]))
        app.ok("owner", "PATCH", f"/users/{app.users['ada']}", role=None)
        assert stream.next() == ("reset", {"subscription": "tasks"})
        app.change("tasks", made["id"], title="A user does not")
        assert stream.is_silent()


def test_a_break_over_a_change_of_rules_ends_with_a_reset(app: App) -> None:
    made = task(app, "bob")
    with app.live("ada") as stream:
        assert stream.next() == READY
    opened = copy.deepcopy(DOCUMENT)
    opened["tables"]["tasks"]["rules"]["user"]["read"] = {}
    app.ok("owner", "PUT", "/schema", document=opened)
    with app.live("ada", last_id=stream.last_id) as again:
        assert again.next() == ("reset", {"subscription": "tasks"})
        app.change("tasks", made["id"], title="Open")
        assert again.next() == row(seen(app, "ada", made["id"]))
    app.ok("owner", "PUT", "/schema", document=DOCUMENT)
    with app.live("ada", last_id=again.last_id) as third:
        assert third.next() == ("reset", {"subscription": "tasks"})
        app.change("tasks", made["id"], title="Closed")
        assert third.is_silent()
    with app.live("ada", last_id=third.last_id) as last:
        assert last.is_silent(), "nothing was missed since the reset"


def test_a_reset_branch_is_listed_again_and_its_streams_go_on(app: App) -> None:
    environments, owner = f"/projects/{app.project_id}/environments", app.clients["owner"]
    branch = app.ok("owner", "POST", environments, name="preview", data="full")["id"]
    owner.headers["X-Environment"] = branch
    try:
        with app.live("owner") as stream:
            assert stream.next() == READY
            before = stream.last_id
            app.ok("owner", "POST", "/rows/tasks", title="Before")
            assert stream.next()[1]["row"]["title"] == "Before"
            app.ok("owner", "POST", f"{environments}/{branch}/reset", data="full")
            assert stream.next() == ("reset", {"subscription": "tasks"})
            app.ok("owner", "POST", "/rows/tasks", title="After")
            assert stream.next()[1]["row"]["title"] == "After"
        with app.live("owner", last_id=before) as again:
            assert again.next() == ("reset", {"subscription": "tasks"})
            assert again.is_silent(), "what came before and after is in the list"
    finally:
        owner.headers["X-Environment"] = app.environment
        app.ok("owner", "DELETE", f"{environments}/{branch}")


def test_a_break_over_a_reused_column_name_shows_no_old_cell(app: App) -> None:
    with app.live("ada") as stream:
        assert stream.next() == READY
    made = task(app, secret="hidden")
    renamed = copy.deepcopy(DOCUMENT)
    columns = renamed["tables"]["tasks"]["columns"]
    columns["old"] = columns["secret"] | {"renamed_from": "secret"}
    columns["secret"] = {"type": "text", "null": True}
    renamed["tables"]["tasks"]["rules"]["user"]["read"]["columns"] = ["*", "-old"]
    app.ok("owner", "PUT", "/schema", document=renamed)
    with app.live("ada", last_id=stream.last_id) as again:
        assert again.next() == ("reset", {"subscription": "tasks"})
        assert seen(app, "ada", made["id"])["secret"] is None
        assert again.is_silent()
    app.ok("owner", "PUT", "/schema", document=DOCUMENT, confirm=["drop column tasks.old"])


@pytest.mark.parametrize("change", [{"role": "editor"}, {"claims": {"level": 1}}], ids=["role", "claims"])
def test_a_break_over_other_rights_ends_with_a_reset(app: App, change: Any) -> None:
    former: dict[str, Any] = {"role": None, "claims": {}}
    path = f"/users/{app.users['ada']}"
    with app.live("ada") as stream:
        assert stream.next() == READY
    app.ok("owner", "PATCH", path, **change)
    with app.live("ada", last_id=stream.last_id) as again:
        assert again.next() == ("reset", {"subscription": "tasks"})
        app.ok("owner", "PATCH", path, **former)
        assert again.next() == ("reset", {"subscription": "tasks"})
    with app.live("ada", last_id=again.last_id) as third:
        assert third.is_silent(), "its id is of the present rights"
    app.ok("owner", "PATCH", path, **change)
    app.ok("owner", "PATCH", path, **former)
    made = task(app)
    with app.live("ada", last_id=third.last_id) as last:
        assert last.next() == row(seen(app, "ada", made["id"])), "these rights were other ones only in between"


def test_a_new_stream_never_goes_by_the_role_that_others_still_have(app: App) -> None:
    made = task(app, "bob")
    with app.live("ada"):
        for role, kinds in (("editor", ["ready", "row"]), (None, ["ready"])):
            app.ok("owner", "PATCH", f"/users/{app.users['ada']}", role=role)
            with app.live("ada") as stream:
                found = [stream.next()[0]]
                app.change("tasks", made["id"], title=f"As {role}")
                assert found + [stream.next()[0] for _ in kinds[1:]] == kinds
                assert stream.is_silent()


def test_streams_of_one_caller_share_what_they_are_sent_and_nothing_else(app: App) -> None:
    """Several of them are in one process. A stream that asks for less, or is another caller's, is sent its own."""
    app.add_user("mia")  # none of whose ten streams is one that another test has just left
    titles = {"tasks": {"table": "tasks", "columns": "title"}}
    with contextlib.ExitStack() as ends:
        whole = [ends.enter_context(app.live("mia")) for _ in range(5)]
        short = [ends.enter_context(app.live("mia", titles)) for _ in range(3)]
        others = [ends.enter_context(app.live("bob")) for _ in range(3)]
        for each in (*whole, *short, *others):
            assert each.next() == READY
        made = task(app, "mia", title="Shared")
        shown = seen(app, "mia", made["id"])
        for each in whole:
            assert each.next() == row(shown)
        for each in short:
            assert each.next()[1]["row"] == {"id": made["id"], "title": "Shared"}
        app.change("tasks", made["id"], owner_id=app.users["bob"])
        for each in (*whole, *short):
            assert each.next()[0] == "gone"
        for each in others:
            assert each.next() == row(seen(app, "bob", made["id"]))
    app.change("tasks", made["id"], owner_id=app.users["mia"])
    for each in whole:  # each of their ids holds
        with wait_for("room", lambda last_id=each.last_id: _opened(app, "mia", last_id)) as again:  # type: ignore[misc]
            assert again.next()[0] == "row"


def test_a_transaction_that_commits_late_is_not_skipped(app: App) -> None:
    """Its event has a lower sequence than those that were sent before."""
    first, second = task(app), task(app)
    database = app.database()
    with app.live("ada") as stream, database, database.cursor() as cursor:
        assert stream.next() == READY
        cursor.execute(
            "INSERT INTO platform.rows_outboxevent (event_id, environment_id, type, subject, depth, data)"
            " SELECT 'evt_late', %(environment)s, 'tasks.update', 'tasks/' || %(id)s::text, 0, json_build_object("
            " 'table', 'tasks', 'id', %(id)s::text, 'changed', array['title'],"
            " 'old_record', json_build_object('id', %(id)s::text, 'title', 'T', 'owner_id', %(owner)s::text),"
            " 'record', json_build_object('id', %(id)s::text, 'title', 'Late', 'owner_id', %(owner)s::text))::text",
            {"environment": app.environment, "id": first["id"], "owner": app.users["ada"]},
        )
        for number in range(3):
            app.change("tasks", second["id"], title=f"{number}")
            assert stream.next()[1]["row"]["title"] == f"{number}"
        database.commit()
        assert stream.next()[1]["row"]["title"] == "Late"


def test_table_without_subscribers_records_no_event(app: App) -> None:
    app.put("teams", name="Quiet")
    with app.database() as database:
        asked = "SELECT count(*) FROM platform.rows_outboxevent WHERE environment_id = %s AND type LIKE 'unwatched%%'"
        assert database.execute(asked, [app.environment]).fetchone() == (0,)


def test_it_ends_within_a_second_after_its_credential_is_revoked(app: App) -> None:
    key = app.ok("owner", "POST", "/keys", name="short", scopes=["rows:read"], environment_id=app.environment)
    app.clients["short"] = app._client(key["secret"])
    with app.live("short") as stream:
        assert stream.next() == READY
        app.ok("owner", "DELETE", f"/keys/{key['id']}")
        began = time.monotonic()
        kind, data = stream.next()
        assert (kind, data["reason"]) == ("bye", "unauthorized")
        assert 200 <= data["retry_ms"] <= 3_000
        assert time.monotonic() - began < within(2)
        assert stream.next()[0] == "closed"


def test_a_caller_has_a_limited_number_of_streams(app: App) -> None:
    """In all processes together: a stream that ends frees its slot."""
    app.add_user("eve")
    streams = [Live(app.clients["eve"], TASKS) for _ in range(12)]
    try:
        assert [stream.response.status_code for stream in streams] == [200] * 10 + [429] * 2
        assert streams[-1].response.headers["Retry-After"] == "5"
        streams[0].close()
        with wait_for("room", lambda: _opened(app, "eve")) as stream:
            assert stream.next() == READY
    finally:
        for stream in streams:
            stream.close()


def _opened(app: App, who: str, last_id: str | None = None) -> Any:
    stream = Live(app.clients[who], TASKS, last_id)
    return closing(stream) if stream.response.status_code == 200 else None


def test_a_client_that_never_reads_is_cut_off_before_it_costs_memory(app: App) -> None:
    url = app.clients["server"].base_url
    body = json.dumps({"subscriptions": TASKS})
    request = (
        f"POST /v1/changes HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Type: application/json\r\n"
        f"Authorization: {app.clients['server'].headers['Authorization']}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    with socket.socket() as line, app.live("server") as reader:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        line.connect((url.host, url.port))
        line.sendall(request.encode())
        wait_for("ready", lambda: b"event: ready" in line.recv(8192, socket.MSG_PEEK))
        for number in range(60):
            rows = [{"title": "x" * 250_000, "rank": number} for _ in range(4)]
            assert app.clients["server"].post("/rows/tasks", json=rows).status_code == 201
            count = 0
            while count < 4:  # at once: a stream that is 32 MB behind would be reset
                count += reader.next()[0] == "row"
        line.settimeout(20)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while part := line.recv(1 << 20):
                received += len(part)
        assert received < 12_000_000, "of 60 MB: what the two machines' buffers hold"
    app.ok("server", "DELETE", "/rows/tasks?where=" + quote('{"title":{"$startsWith":"xxx"}}'))


def test_a_stopped_process_says_goodbye_and_its_streams_go_on_elsewhere(app: App) -> None:
    old = set(app.served.web_workers())
    with app.live("ada") as stream:
        assert stream.next() == READY
        made = task(app, title="Before")
        assert stream.next() == row(seen(app, "ada", made["id"]))
        app.served.process.send_signal(signal.SIGHUP)
        kind, data = stream.next()
        assert (kind, data["reason"]) == ("bye", "restarting")
        assert stream.next()[0] == "closed"
    app.change("tasks", made["id"], title="Between")
    # A process that is about to end as well says 503, and closes the connection.
    with wait_for("another process", lambda: _opened(app, "ada", stream.last_id)) as again:
        assert again.next() == row(seen(app, "ada", made["id"]))
    wait_for("all processes are replaced", lambda: old.isdisjoint(app.served.web_workers()))


def test_metrics_count_streams_and_messages(app: App) -> None:
    def values() -> dict[str, float]:
        lines = httpx.get(f"{app.served.base_url}/metrics").text.splitlines()
        found = dict(line.rsplit(" ", 1) for line in lines if line.startswith("platform_change_"))
        return {
            name.split("{")[0].removeprefix("platform_change_"): float(found[name])
            for name in found
            if "us-east-1" in name
        }

    with app.live("server") as stream:
        assert stream.next() == READY
        before = values()
        assert before["streams"] >= 1
        app.ok("server", "POST", "/rows/tasks", title="counted")
        assert stream.next()[0] == "row"
        wait_for("the message is counted", lambda: values()["messages_total"] > before.get("messages_total", 0))
        assert 0 <= values()["lag_seconds"] < 5
    wait_for("the stream is counted no more", lambda: values()["streams"] < before["streams"])
