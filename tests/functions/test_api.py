"""Functions over the API: deployed, invoked, listed, cancelled, with real Deno and real rows."""

import json
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from django.conf import settings
from django.db import connections
from django.db.models.functions import Now

from accounts import audit
from accounts.models import AuditEntry, ServerKey
from accounts.users import service as user_service
from functions.execution.run_as import restore_caller
from functions.models import Function, Run, Secret, Version
from functions.runs import leases, start
from functions.runs import retention as run_retention
from functions.worker import Worker
from platform_site.http import idempotency
from platform_site.identity.callers import EnvironmentRef
from platform_site.identity.plans import PLANS
from tests.projects.conftest import environment_of, key_for, make_project, publishable_key_for
from tests.rows.conftest import Tracker
from tests.support.client import Answer, Api
from tests.support.functions import SUM, deploy, invoke
from tests.support.tracker import DOCUMENT

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)

LOOP = "export default () => { while (true) {} }"


def test_a_function_is_deployed_invoked_and_its_run_is_listed(tracker: Tracker) -> None:
    made = deploy(tracker, "sum", SUM)
    assert (made.status, made.headers["Location"]) == (201, "/v1/functions/sum")
    assert made.json["active_version"] == 1
    got = invoke(tracker, "sum", {"a": 1, "b": 2})
    assert got.status == 200
    assert got.json["output"] == {"sum": 3}
    assert got.json["status"] == "succeeded"
    listed = tracker.get("owner", "/functions/sum/runs").json["data"]
    assert [(run["id"], run["status"]) for run in listed] == [(got.json["run_id"], "succeeded")]
    assert listed[0]["started_at"].endswith("Z")
    made_at, started_at = (
        Run.objects.using(tracker.project.cluster).values_list("created_at", "started_at").get(pk=got.json["run_id"])
    )
    assert made_at <= started_at
    assert "error" not in listed[0]
    detail = tracker.get("owner", f"/functions/sum/runs/{got.json['run_id']}").json
    assert detail["output"] == {"sum": 3}
    assert "no_new_privileges" in detail["sandbox_layers"]


def test_a_run_that_threw_says_where_to_whoever_may_read_the_source(tracker: Tracker) -> None:
    source = """type In = {a?: {b: number}};
function deep(i: In) {
  return i.a!.b;
}
export default (i: In) => deep(i);
"""
    deploy(tracker, "deep", source)
    thrown = invoke(tracker, "deep", {}, who="alice").json
    assert thrown["error"] == "TypeError: Cannot read properties of undefined (reading 'b')"
    path = f"/functions/deep/runs/{thrown['run_id']}"
    stack = tracker.get("owner", path).json["stack"].splitlines()
    assert stack[0] == thrown["error"]
    assert [line.strip() for line in stack[1:3]] == ["at deep (function.ts:3:15)", "at default (function.ts:5:27)"]
    assert tracker.get("alice", path).json["stack"] is None
    deploy(tracker, "sum", SUM)
    run_id = invoke(tracker, "sum", {"a": 1, "b": 2}).json["run_id"]
    assert tracker.get("owner", f"/functions/sum/runs/{run_id}").json["stack"] is None


def test_a_refusal_that_nobody_caught_names_the_columns(tracker: Tracker) -> None:
    deploy(tracker, "add", 'export default (_: unknown, ctx: any) => ctx.rows.insert("lists", {nme: 1})')
    assert "nme: There is no such column" in invoke(tracker, "add").json["error"]


@pytest.mark.exhaustive
def test_missing_function_error_names_environment_and_suggestion(tracker: Tracker) -> None:
    deploy(tracker, "open-tasks", SUM)
    deploy(tracker, "mine-only", SUM, invoke="key")
    environment = tracker.environment_id

    def said(who: str, name: str) -> str:
        answers = [invoke(tracker, name, who=who), tracker.get(who, f"/functions/{name}/runs")]
        assert {one.status for one in answers} == {404}
        (message,) = {one.json["error"]["message"] for one in answers}
        return str(message)

    assert (
        said("owner", "open-task") == f'There is no function "open-task" in {environment}; did you mean "open-tasks"?'
    )
    assert said("owner", "mine-onyl").endswith('did you mean "mine-only"?')
    assert said("alice", "mine-onyl") == f'There is no function "mine-onyl" in {environment}.'
    assert said("alice", "mine-only") == f'There is no function "mine-only" in {environment}.'
    deploy(tracker, "theirs", SUM, invoke="user")
    refused = invoke(tracker, "theirs", who="owner")
    assert (refused.status, refused.json["error"]["message"]) == (
        404,
        'The function theirs can only be invoked by users of the application (its "invoke" is "user").',
    )
    assert said("owner", "nothing-like-it") == f'There is no function "nothing-like-it" in {environment}.'


def test_a_function_of_another_environment_is_not_there(tracker: Tracker, make_tracker: Any) -> None:
    deploy(make_tracker(DOCUMENT, "Other"), "sum", SUM, invoke="public")
    assert invoke(tracker, "sum", {"a": 1, "b": 1}, who="owner").status == 404


@pytest.mark.exhaustive
def test_a_version_can_be_rolled_back(tracker: Tracker) -> None:
    deploy(tracker, "v", "export default () => 1")
    again = deploy(tracker, "v", "export default () => 2")
    assert (again.status, again.json["active_version"]) == (200, 2)
    assert invoke(tracker, "v").json["output"] == 2
    back = tracker.post("owner", "/functions/v/activate", {"version": 1})
    assert (back.status, back.json["active_version"]) == (200, 1)
    assert invoke(tracker, "v").json["output"] == 1
    assert tracker.post("owner", "/functions/v/activate", {"version": 9}).status == 404
    versions = tracker.get("owner", "/functions/v/versions").json["data"]
    assert [(each["version"], each["is_active"]) for each in versions] == [(2, False), (1, True)]


@pytest.mark.exhaustive
def test_the_source_of_the_newest_version_sent_again_makes_no_other(tracker: Tracker) -> None:
    one, two = "export default () => 1", "export default () => 2"
    deploy(tracker, "v", one)
    deploy(tracker, "v", two, secrets={"A": "a"})
    before = tracker.get("owner", "/functions/v/versions").json
    again = deploy(tracker, "v", two, attempts=2)
    assert (again.status, again.json["active_version"], again.json["secrets"]) == (200, 2, ["A"])
    assert again.json["attempts"] == 2, "what belongs to the function changes as it says"
    tracker.post("owner", "/functions/v/activate", {"version": 1})
    assert deploy(tracker, "v", two).json["active_version"] == 2
    assert tracker.get("owner", "/functions/v/versions").json == before
    assert invoke(tracker, "v").json["output"] == 2
    assert deploy(tracker, "v", one).json["active_version"] == 3, "an older one is deployed anew"
    assert deploy(tracker, "v", one + "\n").json["active_version"] == 4


def test_a_page_of_large_versions_ends_early_and_goes_on(tracker: Tracker) -> None:
    deploy(tracker, "v", "export default () => 1")
    function = Function.objects.using(tracker.project.cluster).get(name="v")
    Version.objects.using(tracker.project.cluster).bulk_create(
        Version(function=function, number=number, source=f"//{'x' * 500_000}", source_hash="", author_kind="key")
        for number in range(2, 12)
    )
    first = tracker.get("owner", "/functions/v/versions").json
    assert [each["version"] for each in first["data"]] == [11, 10, 9, 8, 7, 6, 5, 4]
    rest = tracker.get("owner", f"/functions/v/versions?cursor={first['next_cursor']}").json
    assert ([each["version"] for each in rest["data"]], rest["next_cursor"]) == ([3, 2, 1], None)


@pytest.mark.exhaustive
def test_a_timeout_is_504_and_a_failed_run(tracker: Tracker) -> None:
    deploy(tracker, "loop", LOOP, timeout_ms=200)
    got = invoke(tracker, "loop")
    assert (got.status, got.error) == (504, "function_timeout")
    run_id = got.json["error"]["run_id"]
    (run,) = tracker.get("owner", "/functions/loop/runs?status=failed").json["data"]
    assert run["id"] == run_id
    assert "FunctionTimeout" in run["error"]
    assert tracker.get("owner", "/functions/loop/runs?status=succeeded").json == {"data": []}


def test_what_throws_answers_200_with_its_error_and_no_output(tracker: Tracker) -> None:
    deploy(tracker, "bad", "export default () => { console.log('so far'); throw new TypeError('no') }")
    got = invoke(tracker, "bad")
    assert (got.status, got.json["status"]) == (200, "failed")
    assert got.json["error"] == "TypeError: no"
    assert "output" not in got.json
    detail = tracker.get("owner", f"/functions/bad/runs/{got.json['run_id']}").json
    (line,) = detail["logs"]
    assert (line["level"], line["text"], line["at"].endswith("Z")) == ("info", "so far", True)


def test_what_does_not_load_is_refused_with_line_and_column(tracker: Tracker) -> None:
    got = deploy(tracker, "broken", "export default () => {\n  const x = 1 +; }")
    assert (got.status, got.fields) == (422, {"source": "does_not_load"})
    assert "function.ts:2:16" in got.json["error"]["fields"][0]["message"]
    assert tracker.get("owner", "/functions/broken").status == 404


def test_a_function_reads_and_writes_rows_as_its_caller_and_no_more(tracker: Tracker) -> None:
    home = tracker.post("key", "/rows/lists", {"name": "Home", "owner_id": tracker.users["alice"]}).json["id"]
    source = """export default async (input: any, ctx: any) => {
        const made = await ctx.rows.insert("tasks", {title: "from a function", list_id: input.list});
        const seen = (await ctx.rows.list("lists")).data.map((l: any) => l.name);
        let refused = ""; try { await ctx.rows.update("lists", input.list, {name: "x"}) } catch (e) { refused = e.code }
        return {made, seen, refused, caller: ctx.caller.id} }"""
    assert deploy(tracker, "mine", source).status == 201
    got = invoke(tracker, "mine", {"list": home}, who="alice").json["output"]
    assert got["seen"] == ["Home"]
    assert got["made"]["owner_id"] == tracker.users["alice"]
    assert "internal" not in got["made"]
    assert (got["refused"], got["caller"]) == ("not_found", tracker.users["alice"])
    other = invoke(tracker, "mine", {"list": home}, who="bob")
    assert other.json["status"] == "failed"


@pytest.fixture
def products(make_tracker: Any) -> Tracker:
    columns = {"sku": {"type": "text", "max_length": 20}, "stock": {"type": "integer"}}
    made: Tracker = make_tracker({"tables": {"products": {"columns": columns, "unique": [["sku"]]}}})
    return made


def test_a_function_inserts_what_is_not_there_and_updates_what_is(products: Tracker) -> None:
    source = """export default async ({stock}: any, ctx: any) => [
        await ctx.rows.upsert("products", {sku: "a", stock}, {onConflict: "sku"}),
        await ctx.rows.upsert("products", {id: "b", sku: "b", stock}),
    ].map((row) => [row.sku, row.stock])"""
    assert deploy(products, "count", source).status == 201
    for stock in (1, 2):
        assert invoke(products, "count", {"stock": stock}).json["output"] == [["a", stock], ["b", stock]]
    assert products.get("key", "/rows/products?count=exact").json["count"] == 2


def test_a_function_changes_all_rows_that_fit_as_its_caller(tracker: Tracker) -> None:
    homes = {}
    for who in ("alice", "bob"):
        body = {"name": "Home", "owner_id": tracker.users[who]}
        homes[who] = tracker.post("key", "/rows/lists", body).json["id"]
        for title in ("Tea", "Milk", "Rice"):
            assert tracker.post(who, "/rows/tasks", {"title": title, "list_id": homes[who]}).status == 201
    source = """export default async (input: any, ctx: any) => {
        const refused = [];
        for (const query of [{}, {where: {}, limit: 0}, {where: {internal: "x"}}, {where: {}, order: "id"}])
            try { await ctx.rows.removeMany("tasks", query) } catch (e) { refused.push(e.code) }
        const done = await ctx.rows.updateMany("tasks", {where: {title: {$in: ["Tea", "Milk"]}}}, {done: true});
        const first = await ctx.rows.removeMany("tasks", {where: {done: true}, limit: 1});
        const then = await ctx.rows.removeMany("tasks", {where: {done: true}, cursor: first.next_cursor});
        return {refused, done: done.ids, gone: [...first.ids, ...then.ids]} }"""
    assert deploy(tracker, "tidy", source).status == 201
    got = invoke(tracker, "tidy", {}, who="alice").json["output"]
    assert got["refused"] == ["validation_failed"] * 4
    assert len(got["done"]) == 2
    assert got["gone"] == got["done"]
    left = tracker.get("key", "/rows/tasks?order=title").json["data"]
    assert [(row["title"], row["owner_id"] == tracker.users["alice"], row["done"]) for row in left] == [
        ("Milk", False, False),
        ("Rice", True, False),
        ("Rice", False, False),
        ("Tea", False, False),
    ]


def test_a_function_aggregates_as_its_caller(tracker: Tracker) -> None:
    for who in ("alice", "alice", "bob"):
        home = tracker.post("key", "/rows/lists", {"name": "Home", "owner_id": tracker.users[who]}).json["id"]
        assert tracker.post(who, "/rows/tasks", {"title": "Tea", "list_id": home}).status == 201
    source = """export default async (input: any, ctx: any) => {
        const refused = [];
        for (const query of [{}, {group: ["internal"]}, {count: true, columns: "id"}, {count: true, limit: 2000}])
            try { await ctx.rows.aggregate("tasks", query) } catch (e) { refused.push(e.code) }
        return {refused, found: await ctx.rows.aggregate("tasks", {group: ["title"], count: true, sum: ["priority"]})} }"""
    assert deploy(tracker, "totals", source).status == 201
    got = invoke(tracker, "totals", {}, who="alice").json["output"]
    assert got["refused"] == ["validation_failed"] * 4
    assert got["found"] == {"data": [{"title": "Tea", "count": 2, "sum_priority": None}], "next_cursor": None}


def test_a_function_embeds_users_as_its_caller(tracker: Tracker) -> None:
    home = tracker.post("key", "/rows/lists", {"name": "Home", "owner_id": tracker.users["alice"]}).json["id"]
    task = tracker.post("alice", "/rows/tasks", {"title": "Tea", "list_id": home}).json["id"]
    source = """export default async ({id}: any, ctx: any) => {
        const found = {owner: (await ctx.rows.get("tasks", id, {with: "owner"})).owner};
        const {data} = await ctx.rows.list("tasks", {with: "owner,list.owner"});
        return {...found, data: data.map((row: any) => [row.owner, row.list.owner])} }"""
    assert deploy(tracker, "owners", source).status == 201
    closed = invoke(tracker, "owners", {"id": task}, who="alice").json["error"]
    assert "your role may not read any field of users" in closed
    tracker.apply({**DOCUMENT, "users": {"user": ["name"]}})
    alice = {"name": "alice"}
    got = invoke(tracker, "owners", {"id": task}, who="alice").json["output"]
    assert got == {"owner": alice, "data": [[alice, alice]]}
    assert invoke(tracker, "owners", {"id": task}).json["status"] == "failed", "nothing is open to accounts"


def test_a_function_changes_values_by_what_they_are(tracker: Tracker) -> None:
    home = tracker.post("key", "/rows/lists", {"name": "Home", "owner_id": tracker.users["alice"]}).json["id"]
    body = {"title": "Tea", "list_id": home, "owner_id": tracker.users["alice"], "priority": 1}
    task = tracker.post("key", "/rows/tasks", body).json["id"]
    source = """export default async ({task}: any, ctx: any) => {
        const one = await ctx.rows.update("tasks", task, {priority: {$inc: 2}, price: {$inc: "0.50"}, tags: {$add: ["x"]}});
        await ctx.rows.updateMany("tasks", {where: {}}, {priority: {$inc: 10}, tags: {$append: ["x", "y"]}});
        await Promise.all([1, 2, 3].map(() => ctx.rows.update("tasks", task, {priority: {$inc: 100}})));
        let refused; try { await ctx.rows.update("tasks", task, {priority: {$inc: "1"}}) } catch (e) { refused = e.fields }
        return {one, refused} }"""
    assert deploy(tracker, "count", source).status == 201
    got = invoke(tracker, "count", {"task": task}).json["output"]
    assert (got["one"]["priority"], got["one"]["price"], got["one"]["tags"]) == (3, "0.50", ["x"])
    assert [(field["field"], field["code"]) for field in got["refused"]] == [("priority", "wrong_type")]
    row = tracker.get("key", f"/rows/tasks/{task}").json
    assert (row["priority"], row["tags"]) == (313, ["x", "x", "y"])


def test_a_filter_refuses_what_json_cannot_hold(tracker: Tracker) -> None:
    home = tracker.post("key", "/rows/lists", {"name": "Home", "owner_id": tracker.users["alice"]}).json["id"]
    source = """export default async (input: any, {rows}: any) => {
        const filters = [{title: undefined}, {done: false, "": () => 1}, {$and: [{$not: {title: Symbol()}}]},
          {title: {$in: ["Tea", undefined]}}, {priority: NaN}, {due_on: new Date(NaN)}];
        const told = [];
        for (const where of filters)
            for (const call of [() => rows.list("tasks", {where}), () => rows.aggregate("tasks", {count: true, where}),
                () => rows.aggregate("tasks", {count: true, having: where}),
                () => rows.updateMany("tasks", {where}, {done: true}), () => rows.removeMany("tasks", {where})])
                await call().then(() => told.push(where), (e: any) => told.push([e.name, e.code, e.message]));
        await rows.removeMany("tasks", {where: undefined}).catch((e: any) => told.push([e.name, e.code]));
        const {ids} = await rows.updateMany("tasks", {where: {title: "Tea", done: false, priority: 2n ** 60n}, cursor: undefined},
          {title: undefined, done: true});
        return {told, ids} }"""
    body = {"title": "Tea", "list_id": home, "owner_id": tracker.users["alice"], "priority": 2**60}
    task = tracker.post("key", "/rows/tasks", body).json["id"]
    tracker.post("key", "/rows/tasks", body | {"title": "Milk"})
    assert deploy(tracker, "many", source).status == 201
    got = invoke(tracker, "many", {}).json["output"]
    assert [error[0] for error in got["told"]] == [*["TypeError"] * 30, "ValidationFailed"]
    assert {error[1] for error in got["told"]} == {"validation_failed"}
    assert got["told"][0][2] == 'The filter\'s "title" is undefined, which JSON cannot hold.'
    assert got["told"][25][2] == 'The filter\'s "due_on" is Invalid Date, which JSON cannot hold.'
    assert got["ids"] == [task]
    rows = tracker.get("key", "/rows/tasks").json["data"]
    assert {row["title"]: row["done"] for row in rows} == {"Tea": True, "Milk": False}


def test_a_function_chooses_columns_as_a_request_does(tracker: Tracker) -> None:
    home = tracker.post("key", "/rows/lists", {"name": "Home", "owner_id": tracker.users["alice"]}).json["id"]
    task = tracker.post("alice", "/rows/tasks", {"title": "Tea", "list_id": home}).json["id"]
    source = """export default async (input: any, ctx: any) => {
        const one = await ctx.rows.get("tasks", input.task, {with: "list", columns: "title,list.name"});
        const all = (await ctx.rows.list("tasks", {columns: ["title"], order: ["title.asc", "id"], with: []})).data;
        const refused = [];
        for (const columns of ["internal", ["title", 1]])
            try { await ctx.rows.list("tasks", {columns}) } catch (e) { refused.push(e.code) }
        return {one, all, refused} }"""
    assert deploy(tracker, "mine", source).status == 201
    assert invoke(tracker, "mine", {"task": task}, who="alice").json["output"] == {
        "one": {"id": task, "title": "Tea", "list": {"id": home, "name": "Home"}},
        "all": [{"id": task, "title": "Tea"}],
        "refused": ["validation_failed", "validation_failed"],
    }


def test_an_etag_guards_an_update_and_a_removal_of_a_function(products: Tracker) -> None:
    etag = products.post("key", "/rows/products", {"sku": "a", "stock": 1}).headers["ETag"]
    source = """export default async ({id, etag}: any, {rows}: any) => {
        const stale = {ifMatch: '"0000"'}, told = [];
        for (const call of [() => rows.update("products", id, {stock: 5}, stale), () => rows.remove("products", id, stale)])
            await call().catch((e: any) => told.push(e.code));
        const {stock} = await rows.update("products", id, {stock: 2}, {ifMatch: etag});
        await rows.update("products", id, {stock: 3}, {ifMatch: etag}).catch((e: any) => told.push(e.code));
        return {stock, told} }"""
    assert deploy(products, "guarded", source).status == 201
    [row] = products.get("key", "/rows/products").json["data"]
    got = invoke(products, "guarded", {"id": row["id"], "etag": etag}).json["output"]
    assert got == {"stock": 2, "told": ["precondition_failed"] * 3}


def test_an_unknown_option_of_rows_is_refused_by_its_name(products: Tracker) -> None:
    row = products.post("key", "/rows/products", {"sku": "a", "stock": 1}).json
    source = """export default async ({id}: any, {rows}: any) => {
        const told = [], options = {other: 1};
        for (const call of [() => rows.list("products", {wher: {}}), () => rows.get("products", id, {where: {}}),
            () => rows.aggregate("products", {cuont: true}), () => rows.insert("products", {sku: "b"}, options),
            () => rows.upsert("products", {sku: "b"}, {on_conflict: "sku"}), () => rows.update("products", id, {stock: 2}, options),
            () => rows.remove("products", id, options), () => rows.batch([{op: "delete", table: "products", id}], {dryRun: true}),
            () => rows.updateMany("products", {where: {}}, {stock: 2}, options), () => rows.removeMany("products", {where: {}}, options)])
            await call().catch((e: any) => told.push([e.code, e.fields[0].field]));
        await rows.upsert("products", {sku: "a", stock: 4}, {onConflict: ["sku"]});
        console.log(told.join());
        await rows.list("products", {wher: {}}) }"""
    assert deploy(products, "misspelled", source).status == 201
    got = invoke(products, "misspelled", {"id": row["id"]}).json
    assert "wher: There is no such field in query. Known: columns, count, cursor," in got["error"]
    log = products.get("owner", f"/functions/misspelled/runs/{got['run_id']}").json["logs"][0]["text"]
    names = ("wher", "where", "cuont", "other", "on_conflict", "other", "other", "dryRun", "other", "other")
    assert log == ",".join(f"validation_failed,{name}" for name in names)
    [kept] = products.get("key", "/rows/products").json["data"]
    assert (kept["id"], kept["stock"]) == (row["id"], 4)


def test_an_async_run_is_queued_executed_and_found(tracker: Tracker) -> None:
    deploy(tracker, "sum", SUM)
    got = tracker.post("owner", "/functions/sum/invoke", {"input": {"a": 2, "b": 3}, "async": True})
    assert got.status == 202
    run_id = got.json["run_id"]
    assert got.headers["Location"] == f"/v1/functions/sum/runs/{run_id}"
    queued = tracker.get("owner", f"/functions/sum/runs/{run_id}").json
    assert (queued["status"], queued["phase"]) == ("running", "queued")
    assert Worker(tracker.project.cluster).run() == 1
    done = tracker.get("owner", f"/functions/sum/runs/{run_id}").json
    assert (done["status"], done["phase"], done["output"], done["attempts"]) == ("succeeded", "ended", {"sum": 5}, 1)


def test_integers_above_two_to_the_53_survive_the_queue(tracker: Tracker) -> None:
    """As in a run that is awaited (tests/functions/test_runtime.py)."""
    big = {"least": -(2**63), "n": 2**53 + 1, "all": [2**63 - 1, 2**53 - 1], "text": str(2**53 + 1)}
    source = (
        "export default (all: any) =>"
        " ({...all, next: all.n + 1n, types: [typeof all.n, typeof all.all[1], typeof all.text]})"
    )
    deploy(tracker, "big", source)
    run_id = tracker.post("owner", "/functions/big/invoke", {"input": big, "async": True}).json["run_id"]
    assert Worker(tracker.project.cluster).run() == 1
    done = tracker.get("owner", f"/functions/big/runs/{run_id}").json
    assert (done["status"], done.get("error")) == ("succeeded", None)
    assert done["output"] == {**big, "next": 2**53 + 2, "types": ["bigint", "number", "string"]}


@pytest.fixture
def visited(tracker: Tracker) -> Tracker:
    """`visitor` uses a publishable key; anonymous callers may read the names of lists and write comments, unseen."""
    document = json.loads(json.dumps(DOCUMENT))
    document["tables"]["lists"]["rules"]["anonymous"] = {"read": {"columns": ["name"]}}
    tracker.apply(document)
    tracker.tokens["visitor"] = publishable_key_for(tracker.environment_id)
    return tracker


@pytest.mark.exhaustive
def test_publishable_key_invokes_only_public_functions(visited: Tracker) -> None:
    """Each of the others was deployed without anonymous callers in mind, some before publishable keys existed."""
    for name, more in (
        ("any", {}),
        ("users", {"invoke": "user"}),
        ("keys", {"invoke": "key"}),
        ("null", {"invoke": None}),
    ):
        assert deploy(visited, name, SUM, **more).status == 201
        for how in ({"input": {"a": 1}}, {"async": True}):
            answers = [visited.post("visitor", f"/functions/{which}/invoke", how) for which in (name, "nothing")]
            assert [answer.status for answer in answers] == [404, 404]
            said = [
                answer.json["error"]["message"].replace(f'"{which}"', "…")
                for answer, which in zip(answers, (name, "nothing"), strict=True)
            ]
            assert said[0] == said[1]
    assert not Run.objects.using(visited.project.cluster).exists()
    assert deploy(visited, "any", SUM, invoke="public").json["invoke"] == "public"
    assert deploy(visited, "any", SUM).json["invoke"] == "public", "a deployment that does not speak of it leaves it"
    for who in ("visitor", "alice", "owner"):
        assert invoke(visited, "any", {"a": 1, "b": 2}, who=who).json["output"] == {"sum": 3}
    visited.tokens["narrow"] = publishable_key_for(visited.environment_id, "rows:read")
    assert invoke(visited, "any", {"a": 1, "b": 2}, who="narrow").status == 403


@pytest.mark.exhaustive
def test_function_has_the_rights_of_its_anonymous_caller(visited: Tracker) -> None:
    home = visited.post("key", "/rows/lists", {"name": "Home", "owner_id": visited.users["alice"]}).json["id"]
    source = """export default async (input, ctx) => {
      const tried = async (what) => { try { return await what() } catch (error) { return error.code } };
      return [ctx.caller, await tried(() => ctx.rows.get("lists", input.list)), await tried(() => ctx.rows.list("tasks")),
        await tried(() => ctx.rows.insert("lists", {name: "Mine"})), await tried(() => ctx.rows.remove("lists", input.list))]
    }"""
    deploy(visited, "look", source, invoke="public")
    caller, *told = invoke(visited, "look", {"list": home}, who="visitor").json["output"]
    key = ServerKey.objects.get(name="page").pk
    assert caller == {"kind": "anonymous", "id": key, "email": None, "role": None}
    assert told == [{"id": home, "name": "Home"}, "not_found", "not_found", "not_found"]
    assert [row["id"] for row in visited.get("key", "/rows/lists").json["data"]] == [home]
    visited.tokens["narrow"] = publishable_key_for(visited.environment_id, "functions:invoke")
    assert invoke(visited, "look", {"list": home}, who="narrow").json["output"][1] == "forbidden"


def test_function_of_a_caller_that_may_not_read_rows_only_inserts(tracker: Tracker) -> None:
    home = tracker.post("key", "/rows/lists", {"name": "Home", "owner_id": tracker.users["alice"]}).json["id"]
    source = """export default async ({list, owner_id}, {rows}) => {
      const tried = async (what) => { try { await what(); return "done" } catch (error) { return error.code } };
      const insert = {op: "insert", table: "lists", values: {name: "Mine", owner_id}};
      return [await tried(() => rows.insert("lists", insert.values)), await tried(() => rows.batch([insert])),
        await tried(() => rows.batch([insert, {op: "update", table: "lists", id: list, values: {}}])),
        await tried(() => rows.update("lists", list, {})), await tried(() => rows.remove("lists", list)),
        await tried(() => rows.updateMany("lists", {where: {}}, {})), await tried(() => rows.removeMany("lists", {where: {}})),
        await tried(() => rows.upsert("lists", {id: list, name: "x", owner_id}, {onConflict: "id"}))]
    }"""
    deploy(tracker, "write", source)
    tracker.tokens["writer"] = key_for(tracker.environment_id, "rows:write", "functions:invoke")
    sent = {"list": home, "owner_id": tracker.users["alice"]}
    output = invoke(tracker, "write", sent, who="writer").json["output"]
    assert output == ["done", "done", *["forbidden"] * 6]
    tracker.tokens["reader"] = key_for(tracker.environment_id, "rows:read", "functions:invoke")
    assert invoke(tracker, "write", sent, who="reader").json["output"] == ["forbidden"] * 8


def test_anonymous_caller_neither_sees_nor_cancels_runs(visited: Tracker) -> None:
    """Not even its own: all callers share the key, and would see the inputs of each other."""
    deploy(visited, "sum", SUM, invoke="public")
    run = invoke(visited, "sum", {"a": 1, "b": 2}, who="visitor").json["run_id"]
    queued = visited.post("visitor", "/functions/sum/invoke", {"input": {"a": 1, "b": 3}, "async": True})
    assert queued.status == 202
    for one in (run, queued.json["run_id"], "run_that_is_not_there"):
        assert visited.get("visitor", f"/functions/sum/runs/{one}").status == 403
        assert visited.post("visitor", f"/functions/sum/runs/{one}/cancel", {}).status == 403
        assert visited.get("alice", f"/functions/sum/runs/{one}").status == 404
    for path in ("/functions", "/functions/sum", "/functions/sum/versions", "/functions/sum/runs"):
        assert visited.get("visitor", path).status == 403
    assert visited.get("owner", f"/functions/sum/runs/{queued.json['run_id']}").json["phase"] == "queued"


def test_a_key_that_may_only_invoke_cancels_a_run_without_reading_it(tracker: Tracker) -> None:
    deploy(tracker, "sum", SUM)
    tracker.tokens["narrow"] = key_for(tracker.environment_id, "functions:invoke")
    body = {"input": {"a": 1, "b": 1}, "async": True}
    run_id = tracker.post("narrow", "/functions/sum/invoke", body).json["run_id"]
    run = Run.objects.using(tracker.project.cluster).filter(pk=run_id)
    run.update(logs=[{"at": 1.0, "level": "info", "text": "of another caller"}])
    got = tracker.post("narrow", f"/functions/sum/runs/{run_id}/cancel", {})
    assert (got.status, got.json["id"], got.json["output"], got.json["logs"]) == (200, run_id, None, [])
    assert tracker.get("narrow", f"/functions/sum/runs/{run_id}").status == 403
    assert run.get().logs


@pytest.mark.exhaustive
def test_queued_anonymous_run_starts_as_anonymous(visited: Tracker) -> None:
    """And with a revoked key it belongs to no caller."""
    deploy(
        visited,
        "who",
        "export default (_, ctx) => ctx.rows.list('tasks').catch(e => [ctx.caller.kind, e.code])",
        invoke="public",
    )

    def queue() -> str:
        return str(visited.post("visitor", "/functions/who/invoke", {"async": True}).json["run_id"])

    first = queue()
    assert Worker(visited.project.cluster).run() == 1
    assert visited.get("owner", f"/functions/who/runs/{first}").json["output"] == ["anonymous", "not_found"]
    second = queue()
    user_service.revoke_key(ServerKey.objects.get(name="page"), actor=audit.SYSTEM)
    Worker(visited.project.cluster).run()
    gone = visited.get("owner", f"/functions/who/runs/{second}").json
    assert (gone["status"], gone["error"].split(":")[0]) == ("failed", "CallerGone")


def test_anonymous_callers_with_one_idempotency_key_get_their_own_answers(visited: Tracker) -> None:
    deploy(visited, "count", "let n = 0; export default (input) => [++n, input]", invoke="public")

    def call(address: str, word: str, is_async: bool = False) -> Answer:
        body = {"input": {"word": word}, "async": is_async}
        how = {"headers": {"Idempotency-Key": "once"}, "remote_addr": address}
        return visited.post("visitor", "/functions/count/invoke", body, **how)

    mine = call("203.0.113.1", "mine")
    assert call("203.0.113.1", "mine").json["run_id"] == mine.json["run_id"]
    others = [call("203.0.113.2", "mine"), call("203.0.113.1", "theirs"), call("203.0.113.2", "mine", is_async=True)]
    assert len({answer.json["run_id"] for answer in (mine, *others)}) == 4
    assert others[1].json["output"][1] == {"word": "theirs"}


def test_a_queued_run_of_a_disabled_user_runs_nothing(tracker: Tracker) -> None:
    deploy(tracker, "sum", SUM)
    queued = tracker.post("alice", "/functions/sum/invoke", {"input": {"a": 2, "b": 3}, "async": True}).json["run_id"]
    disabled = tracker.patch("owner", f"/users/{tracker.users['alice']}", {"disabled": True})
    assert disabled.status == 200, disabled.json
    Worker(tracker.project.cluster).run()
    run = tracker.get("owner", f"/functions/sum/runs/{queued}").json
    assert (run["status"], run["error"].split(":")[0], run["output"]) == ("failed", "CallerGone", None)


def test_a_run_has_no_caller_of_another_environment(
    tracker: Tracker, environment: EnvironmentRef, make_tracker: Any
) -> None:
    other = make_tracker(DOCUMENT, "Other")
    key = ServerKey.objects.filter(environment_id=other.environment_id).earliest("pk")
    assert restore_caller("key", key.pk, environment.environment_id) is None
    assert restore_caller("user", other.users["alice"], environment.environment_id) is None
    assert restore_caller("user", other.users["alice"], other.environment_id) is not None


def test_a_failing_async_run_is_retried_by_policy(tracker: Tracker) -> None:
    deploy(tracker, "bad", "export default () => { throw new Error('always') }", attempts=2)
    queued = tracker.post("owner", "/functions/bad/invoke", {"async": True}).json["run_id"]
    worker = Worker(tracker.project.cluster)
    assert worker.run() == 1
    waiting = tracker.get("owner", f"/functions/bad/runs/{queued}").json
    assert (waiting["status"], waiting["phase"], waiting["attempts"]) == ("running", "queued", 1)
    Run.objects.using(tracker.project.cluster).filter(pk=queued).update(claimed_until=None)
    assert worker.run() == 1
    ended = tracker.get("owner", f"/functions/bad/runs/{queued}").json
    assert (ended["status"], ended["attempts"]) == ("failed", 2)
    assert ended["started_at"] == waiting["started_at"], "it began with its first attempt"


def test_a_lost_worker_leaves_no_eternal_run(tracker: Tracker) -> None:
    using = tracker.project.cluster
    deploy(tracker, "sum", SUM)
    invoke(tracker, "sum", {"a": 1, "b": 1})
    lost = {"phase": "executing", "status": "running", "claimed_until": "2020-01-01T00:00:00Z"}
    Run.objects.using(using).update(**lost)
    assert leases.settle_lost(using) == (0, 1)
    (run,) = tracker.get("owner", "/functions/sum/runs").json["data"]
    assert (run["status"], run["error"].split(":")[0]) == ("failed", "WorkerLost")
    Run.objects.using(using).update(**lost, is_async=True, attempts=1)
    assert leases.settle_lost(using) == (1, 0)
    assert Worker(using).run() == 1
    (run,) = tracker.get("owner", "/functions/sum/runs").json["data"]
    assert run["status"] == "succeeded"
    Run.objects.using(using).update(**lost, is_async=True, attempts=leases.LOST_ATTEMPTS)
    assert leases.settle_lost(using) == (0, 1), "what kills its workers ends"
    # The service was down for months, or an old backup was restored.
    Run.objects.using(using).update(**lost, is_async=False, started_at="2020-01-01T00:00:00Z")
    assert leases.settle_lost(using) == (0, 1)


def test_lease_written_before_the_clock_was_set_back_still_expires(tracker: Tracker) -> None:
    """The host of PostgreSQL was days ahead: a run that waits for its second attempt, and a dead worker's slot, would wait for
    days."""
    using = tracker.project.cluster
    deploy(tracker, "sum", SUM)
    queued, begun = (
        tracker.post("owner", "/functions/sum/invoke", {"input": {"a": 2, "b": 3}, "async": True}).json["run_id"]
        for _ in range(2)
    )
    in_days = {"claimed_until": Now() + timedelta(days=3)}
    Run.objects.using(using).update(**in_days)
    Run.objects.using(using).filter(pk=begun).update(phase="executing", slot=-1, attempts=1, started_at=Now())
    assert Worker(using).run() == 0
    assert leases.repair_future_times(using) == 2
    assert leases.repair_future_times(using) == 0
    assert Worker(using).run() == 1
    assert tracker.get("owner", f"/functions/sum/runs/{queued}").json["status"] == "succeeded"
    assert leases.settle_lost(using) == (0, 0), "its worker may be alive"
    lease = Run.objects.using(using).get(pk=begun).claimed_until
    assert lease is not None
    assert lease - datetime.now(UTC) <= settings.FUNCTION_LEASE


def test_a_queued_run_can_be_cancelled_once(tracker: Tracker) -> None:
    deploy(tracker, "sum", SUM)
    queued = tracker.post("owner", "/functions/sum/invoke", {"input": {"a": 2, "b": 3}, "async": True}).json["run_id"]
    cancelled = tracker.post("owner", f"/functions/sum/runs/{queued}/cancel", {})
    assert (cancelled.status, cancelled.json["status"], cancelled.json["phase"]) == (200, "failed", "ended")
    assert tracker.post("owner", f"/functions/sum/runs/{queued}/cancel", {}).status == 409
    assert Worker(tracker.project.cluster).run() == 0


def test_prefer_respond_async_answers_202_when_it_takes_longer(tracker: Tracker) -> None:
    deploy(tracker, "sum", SUM)
    got = invoke(tracker, "sum", {"a": 1, "b": 1}, headers={"Prefer": "respond-async, wait=0"})
    assert got.status == 202


def test_the_same_idempotency_key_runs_once(tracker: Tracker) -> None:
    deploy(tracker, "count", "let n = 0; export default () => ++n")
    keyed = {"headers": {"Idempotency-Key": "once"}}
    first, second = invoke(tracker, "count", **keyed), invoke(tracker, "count", **keyed)
    assert first.json["run_id"] == second.json["run_id"]
    assert second.json["output"] == 1
    assert second.headers["Idempotency-Replayed"] == "true"
    assert len(tracker.get("owner", "/functions/count/runs").json["data"]) == 1


def test_a_repeated_timeout_says_that_it_is_a_repetition(tracker: Tracker) -> None:
    deploy(tracker, "slow", "export default () => new Promise(() => {})", timeout_ms=50)
    keyed = {"headers": {"Idempotency-Key": "once"}}
    first, second = invoke(tracker, "slow", **keyed), invoke(tracker, "slow", **keyed)
    assert (first.status, second.status, first.json["error"]["run_id"]) == (504, 504, second.json["error"]["run_id"])
    assert ("Idempotency-Replayed" in first.headers, second.headers["Idempotency-Replayed"]) == (False, "true")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_keyed_run_that_was_deleted_from_the_history_is_409(tracker: Tracker, is_async: bool) -> None:
    deploy(tracker, "count", "let n = 0; export default () => ++n")
    body, keyed = {"async": is_async}, {"headers": {"Idempotency-Key": "once"}}
    run_id = tracker.post("owner", "/functions/count/invoke", body, **keyed).json["run_id"]
    Run.objects.using(tracker.project.cluster).filter(pk=run_id).delete()
    got = tracker.post("owner", "/functions/count/invoke", body, **keyed)
    assert (got.status, got.error) == (409, "conflict")
    assert got.json["error"]["message"].endswith("its response is not stored: it is too old or too large.")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_that_is_deleted_as_a_keyed_run_begins_is_not_there(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    deploy(tracker, "count", SUM)
    keep, statuses = idempotency.store_reference, list[int]()

    def delete() -> None:
        statuses.append(tracker.call("owner", "DELETE", "/functions/count").status)
        connections.close_all()

    def keep_late(*args: Any, **options: Any) -> None:
        keep(*args, **options)
        thread = threading.Thread(target=delete)
        thread.start()
        thread.join()

    monkeypatch.setattr(idempotency, "store_reference", keep_late)
    body = {"input": {"a": 1, "b": 1}, "async": is_async}
    got = tracker.post("owner", "/functions/count/invoke", body, headers={"Idempotency-Key": "once"})
    assert statuses == [204]
    assert (got.status, got.json["error"]["code"]) == (404, "not_found")


def test_a_function_that_is_deleted_before_its_run_was_read_says_so(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deploy(tracker, "count", SUM)
    begin = start.start_run

    def begin_and_delete(*args: Any, **options: Any) -> start.CreatedRun:
        started = begin(*args, **options)
        assert tracker.call("owner", "DELETE", "/functions/count").status == 204
        return started

    monkeypatch.setattr(start, "start_run", begin_and_delete)
    got = invoke(tracker, "count", {"a": 1, "b": 1})
    assert (got.status, got.json["status"]) == (200, "failed")
    assert got.json["error"].startswith("FunctionGone")
    assert [record for record in caplog.records if record.levelname == "ERROR"] == [], "nothing is wrong with us"


@pytest.mark.exhaustive
def test_secrets_reach_the_code_and_no_answer(tracker: Tracker) -> None:
    source = "export default (_: unknown, ctx: any) => ctx.secrets.API_TOKEN.length"
    made = deploy(tracker, "s", source, secrets={"API_TOKEN": "top-secret-value"})
    assert made.json["secrets"] == ["API_TOKEN"]
    assert b"top-secret-value" not in made.body
    assert invoke(tracker, "s").json["output"] == 16
    kept = deploy(tracker, "s", source + " ")
    assert kept.json["secrets"] == ["API_TOKEN"], "omitted secrets stay"
    gone = deploy(tracker, "s", source, secrets={"API_TOKEN": None})
    assert gone.json["secrets"] == []


def test_a_secret_without_a_value_is_not_there_for_the_code(tracker: Tracker) -> None:
    """As it came along to a preview branch, or out of a backup: by its name alone."""
    deploy(
        tracker, "s", "export default (_: unknown, ctx: any) => Object.keys(ctx.secrets)", secrets={"A": "x", "B": "y"}
    )
    Secret.objects.using(tracker.project.cluster).filter(name="A").update(sealed_value=None)
    assert invoke(tracker, "s").json["output"] == ["B"]
    queued = tracker.post("owner", "/functions/s/invoke", {"async": True}).json["run_id"]
    assert Worker(tracker.project.cluster).run() == 1
    assert tracker.get("owner", f"/functions/s/runs/{queued}").json["output"] == ["B"]


@pytest.mark.exhaustive
def test_who_may_do_what(tracker: Tracker) -> None:
    deploy(tracker, "open", SUM)
    deploy(tracker, "closed", SUM, invoke="key")
    assert invoke(tracker, "open", {"a": 1, "b": 1}, who="alice").status == 200
    assert invoke(tracker, "closed", {"a": 1, "b": 1}, who="alice").status == 404
    assert tracker.get("alice", "/functions/closed/runs").status == 404
    assert tracker.get("alice", "/functions").status == 403
    assert tracker.get("alice", "/functions/open").status == 403
    assert tracker.get("alice", "/functions/open/versions").status == 403
    invoke(tracker, "open", {"a": 1, "b": 1})
    mine = tracker.get("alice", "/functions/open/runs").json["data"]
    assert len(mine) == 1
    theirs = [run["id"] for run in tracker.get("owner", "/functions/open/runs").json["data"]]
    assert len(theirs) == 2
    assert tracker.get("bob", f"/functions/open/runs/{mine[0]['id']}").status == 404
    for who, status in (("viewer", 403), ("alice", 403), ("reader", 403)):
        assert tracker.call(who, "PUT", "/functions/open", json={"source": SUM}).status == status
    assert tracker.call("viewer", "DELETE", "/functions/open").status == 403


MALFORMED_CALLS: list[tuple[str, Any, int]] = [
    ("/functions/sum/invoke", {"input": [1]}, 422),
    ("/functions/sum/invoke", {"input": "x"}, 422),
    ("/functions/sum/invoke", {"async": "yes"}, 422),
    ("/functions/sum/invoke", {"extra": 1}, 422),
    ("/functions/sum/invoke", [], 422),
    ("/functions/nothing/invoke", {}, 404),
    ("/functions/__proto__/invoke", {}, 404),
    ("/functions/..%2f..%2fetc/invoke", {}, 404),
    ("/functions/a%00b/invoke", {}, 404),
    ("/functions/sum/activate", {"version": "1"}, 422),
    ("/functions/sum/activate", {}, 422),
]


def test_a_malformed_call_is_refused_and_leaves_no_run(tracker: Tracker) -> None:
    deploy(tracker, "sum", SUM)
    for path, body, status in MALFORMED_CALLS:
        assert (path, tracker.post("owner", path, body).status) == (path, status)
    assert not Run.objects.using(tracker.project.cluster).exists()


def test_a_malformed_deployment_names_its_fields(tracker: Tracker) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"source": None}, "source"),
        ({"source": 5}, "source"),
        ({"source": "x" * 600_000}, "source"),
        ({"source": SUM, "timeout_ms": 0}, "timeout_ms"),
        ({"source": SUM, "timeout_ms": 100_000}, "timeout_ms"),
        ({"source": SUM, "memory_mb": 1 << 40}, "memory_mb"),
        ({"source": SUM, "allowed_hosts": ["http://x"]}, "allowed_hosts"),
        ({"source": SUM, "allowed_hosts": "x"}, "allowed_hosts"),
        ({"source": SUM, "allowed_hosts": ["example.com:\N{ARABIC-INDIC DIGIT EIGHT}0"]}, "allowed_hosts"),
        ({"source": SUM, "secrets": {"lower": "x"}}, "secrets"),
        ({"source": SUM, "secrets": {"A": 1}}, "secrets"),
        ({"source": SUM, "attempts": 9}, "attempts"),
        ({"source": SUM, "invoke": "nobody"}, "invoke"),
        ({"source": SUM, "shell": True}, "shell"),
    ]
    for body, field in cases:
        got = tracker.call("owner", "PUT", "/functions/f", json=body)
        assert (got.status, [*got.fields]) == (422, [field]), (body.keys(), got.json)
    for name in ("A", "1a", "a b", "a" * 64, "é"):
        assert tracker.call("owner", "PUT", f"/functions/{name}", json={"source": SUM}).status == 422
    for query in ("status=ended", "status=", "limit=0", "limit=101", "cursor=x"):
        assert tracker.get("owner", f"/functions/f/runs?{query}").status in (404, 422)
    assert tracker.get("owner", "/functions").json["data"] == []


@pytest.mark.exhaustive
def test_limits_of_each_plan_apply_and_match_the_description(tracker: Tracker, api: Api) -> None:
    most = PLANS["team"]
    described = api.get("/v1/openapi.json").json["components"]["schemas"]["Deployment"]["properties"]
    for setting, ceiling in (("timeout_ms", most.function_timeout_ms), ("memory_mb", most.function_memory_mb)):
        assert described[setting]["maximum"] == ceiling
    owner = tracker.project.memberships.get(role="owner").user
    for plan, limits in PLANS.items():
        environment = environment_of(make_project(owner, plan, plan=plan))
        key = key_for(environment.pk, "functions:deploy")
        for above, expected in ((0, 201), (1, 422)):
            body = {"source": SUM, "memory_mb": limits.function_memory_mb + above}
            got = api.request("PUT", f"/v1/functions/f{above}", token=key, json=body)
            assert got.status == expected, got.json
        assert got.fields == {"memory_mb": "out_of_range" if limits is most else "over_plan"}


def configure(tracker: Tracker, name: str, who: str = "owner", **values: Any) -> Answer:
    return tracker.patch(who, f"/functions/{name}", values)


def test_settings_and_secrets_change_without_a_version(tracker: Tracker) -> None:
    source = "export default (_: unknown, ctx: any) => ctx.secrets"
    before = deploy(tracker, "s", source, secrets={"OLD": "1", "KEPT": "2"}, timeout_ms=1_000).json
    got = configure(tracker, "s", attempts=3, allowed_hosts=["api.example.com"], secrets={"OLD": None, "NEW": "3"})
    changed = {"attempts": 3, "allowed_hosts": ["api.example.com"], "secrets": ["KEPT", "NEW"]}
    assert got.status == 200
    assert sorted(got.json["secrets"]) == changed["secrets"]
    assert {**got.json, "updated_at": None, "secrets": None} == {
        **before,
        **changed,
        "updated_at": None,
        "secrets": None,
    }
    assert tracker.get("owner", "/functions/s").json == got.json
    assert invoke(tracker, "s").json["output"] == {"KEPT": "2", "NEW": "3"}
    assert Version.objects.using(tracker.project.cluster).count() == 1
    entry = AuditEntry.objects.get(action="function.configured")
    assert entry.actor_id == tracker.project.memberships.get(role="owner").user_id
    assert (entry.detail["changed"], entry.detail["secrets"]) == (["allowed_hosts", "attempts"], ["NEW", "OLD"])
    assert {**configure(tracker, "s").json, "updated_at": None} == {**got.json, "updated_at": None}


def test_settings_change_once_for_an_idempotency_key(tracker: Tracker) -> None:
    deploy(tracker, "sum", SUM)
    for _ in range(2):
        got = tracker.patch("owner", "/functions/sum", {"attempts": 2}, headers={"Idempotency-Key": "k-1"})
        assert (got.status, got.json["attempts"]) == (200, 2)
    assert AuditEntry.objects.filter(action="function.configured").count() == 1


@pytest.mark.exhaustive
def test_settings_that_the_code_cannot_have_are_refused_and_change_nothing(tracker: Tracker) -> None:
    megabytes = "const all = []; for (let i = 0; i < 100; i++) all.push(new Array(131072).fill(i + 0.5));"
    source = f"{megabytes} export default () => all.length;"
    before = deploy(tracker, "large", source).json
    assert before.get("memory_mb") == 128, before
    got = configure(tracker, "large", memory_mb=64, attempts=5)
    assert (got.status, got.fields) == (422, {"memory_mb": "does_not_load"})
    cases: list[tuple[dict[str, Any], str]] = [
        ({"source": SUM}, "source"),
        ({"timeout_ms": 100_000}, "timeout_ms"),
        ({"secrets": {"lower": "x"}}, "secrets"),
        ({"schedule": "often"}, "schedule"),
        ({"on": ["lists.sold"]}, "on"),
        ({"active_version": 1}, "active_version"),
    ]
    for body, field in cases:
        got = configure(tracker, "large", attempts=5, **body)
        assert (got.status, [*got.fields]) == (422, [field]), (body, got.json)
    assert configure(tracker, "none", attempts=5).status == 404
    for who in ("viewer", "alice", "reader"):
        assert configure(tracker, "large", who, attempts=5).status == 403
    assert tracker.get("owner", "/functions/large").json == before


def test_deleting_takes_everything_along(tracker: Tracker) -> None:
    deploy(tracker, "sum", SUM, secrets={"A": "b"})
    invoke(tracker, "sum", {"a": 1, "b": 1})
    assert tracker.call("owner", "DELETE", "/functions/sum").status == 204
    assert tracker.call("owner", "DELETE", "/functions/sum").status == 404
    assert invoke(tracker, "sum").status == 404
    assert not Run.objects.using(tracker.project.cluster).exists()


def test_runs_expire_after_seven_days(tracker: Tracker) -> None:
    using = tracker.project.cluster
    deploy(tracker, "sum", SUM)
    invoke(tracker, "sum", {"a": 1, "b": 1})
    assert run_retention.purge(using) == 0
    old = "run_" + "0" * 26
    long_ago = "2020-01-01T00:00:00Z"
    Run.objects.using(using).update(id=old, created_at=long_ago, ended_at=long_ago)
    assert tracker.get("owner", "/functions/sum/runs").json == {"data": []}
    Run.objects.using(using).update(phase="queued")
    assert run_retention.purge(using) == 0, "what waits is not forgotten, however long"
    Run.objects.using(using).update(phase="ended")
    invoke(tracker, "sum", {"a": 1, "b": 1})
    assert run_retention.purge(using) == 1
    assert Run.objects.using(using).get().pk != old


def test_run_event_is_recorded_only_with_a_subscriber(tracker: Tracker) -> None:
    from rows.outbox.models import OutboxEvent

    using = tracker.project.cluster
    deploy(tracker, "sum", SUM)
    invoke(tracker, "sum", {"a": 1, "b": 1})
    assert not OutboxEvent.objects.using(using).exists()
    hook = {"url": "https://example.com/hook", "events": ["function.run.succeeded"]}
    webhook = tracker.post("owner", "/webhooks", hook)
    assert webhook.status == 201
    run_ids = {invoke(tracker, "sum", {"a": 1, "b": 1}).json["run_id"] for _ in range(2)}
    events = OutboxEvent.objects.using(using).all()
    assert {event.type for event in events} == {"function.run.succeeded"}
    assert {orjson.loads(event.data)["run_id"] for event in events} == run_ids
    assert tracker.delete("owner", f"/webhooks/{webhook.json['id']}").status == 204
    invoke(tracker, "sum", {"a": 1, "b": 1})
    invoke(tracker, "sum", {"a": 1, "b": 1})
    assert OutboxEvent.objects.using(using).count() == 2
    assert not Run.objects.using(using).exclude(phase="ended").exists()
