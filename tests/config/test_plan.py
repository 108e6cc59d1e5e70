"""`POST /v1/config/plan`: what a document would change. It changes nothing, and repeats no secret that it was given.

The attackers here: a caller that sends secrets or another tenant's environment, a viewer, a key with half of the scopes, and one that sends
documents that take long to read.
"""

import copy
import time
from typing import Any

import pytest
from django.test import override_settings

from accounts import audit
from accounts.models import AuditEntry, User
from platform_site.config.models import StoredPlan
from projects import services
from projects.directory.environments import environment_ref
from projects.models import Environment, Project
from rows.migrate import computation_slots
from rows.migrate.computation_slots import in_slot
from tests.config.conftest import READ, SCHEMA, SOURCE, WRITE, Configured
from tests.projects.conftest import environment_of, key_for, make_project, publishable_key_for, token_of
from tests.support.client import Api
from tests.support.schema_documents import with_grants
from tests.support.timing import within

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def kinds(plan: Any) -> dict[str, str]:
    return {change["operation"] or change["path"]: change["kind"] for change in plan["changes"]}


def test_what_the_environment_has_changes_nothing(configured: Configured) -> None:
    now = configured.config()
    plan = configured.plan(**now["config"])
    assert plan.pop("plan").startswith("pln_")
    assert plan == {
        "version": now["version"],
        "changes": [],
        "confirm": [],
        "conflicts": [],
        "missing_secrets": [],
        "warnings": [],
        "locks": [],
        "locked_ms": 0,
    }


def test_a_plan_names_the_locks_of_its_schema_change(configured: Configured) -> None:
    schema = configured.config("?parts=schema")["config"]["schema"]
    schema["tables"]["notes"]["columns"]["title"]["max_length"] = 40
    plan = configured.plan(schema=schema)
    [lock] = plan["locks"]
    assert (lock["table"], lock["blocks"], lock["work"]) == ("notes", "reads and writes", ["rewrite"])
    assert plan["locked_ms"] == lock["estimated_ms"]


def test_parts_and_fields_that_are_left_out_stay_as_they_are(configured: Configured) -> None:
    plan = configured.plan(functions={"digest": {"timeout_ms": 1000}})
    assert plan["changes"] == [
        {
            "path": "functions.digest.timeout_ms", "kind": "change", "destructive": False, "operation": None,
            "sql": [], "before": 5000, "after": 1000,
        }
    ]  # fmt: skip
    assert plan["confirm"] == []


def test_kept_parts_keep_what_is_left_out(configured: Configured) -> None:
    config = {"functions": {"more": {"source": SOURCE}}, "webhooks": {}}
    assert set(kinds(configured.ask({"config": config}).json).values()) == {"add", "remove"}
    plan = configured.ask({"config": config, "keep": ["functions", "webhooks"]}).json
    assert kinds(plan) == {"functions.more": "add"}
    assert configured.apply(plan).status == 200
    assert sorted(configured.config("?parts=functions")["config"]["functions"]) == ["digest", "more"]
    assert len(configured.config("?parts=webhooks")["config"]["webhooks"]) == 1
    renamed = {"tables": {"remarks": {**SCHEMA["tables"]["notes"], "renamed_from": "notes"}}}
    plan = configured.ask({"config": {"schema": renamed, "webhooks": {}}, "keep": ["webhooks"]}).json
    [webhook] = configured.config("?parts=webhooks")["config"]["webhooks"]
    assert [each["field"] for each in plan["warnings"]] == [f"webhooks.{webhook}.events.{index}" for index in (0, 1)]
    assert configured.ask({"config": config, "keep": ["auth"]}).fields == {"keep.0": "not_among"}
    for other in ("version", "from"):
        assert configured.ask({other: "x", "keep": ["webhooks"]}).fields == {"keep": "unknown"}


def test_a_new_webhook_needs_a_url_and_events(configured: Configured) -> None:
    found = configured.ask({"config": {"webhooks": {"crm": {"enabled": True}}}, "keep": ["webhooks"]})
    assert found.fields == {"config.webhooks.crm.url": "required", "config.webhooks.crm.events": "required"}


def test_the_schema_with_sql_and_destructive_operations_by_name(configured: Configured) -> None:
    document = copy.deepcopy(SCHEMA)
    del document["tables"]["notes"]["columns"]["done"]
    document["tables"]["tags"] = {"columns": {"name": {"type": "text"}}}
    plan = configured.plan(schema=document)
    assert kinds(plan) == {"create table tags": "add", "drop column notes.done": "remove"}
    assert plan["confirm"] == ["drop column notes.done"]
    assert any("CREATE TABLE" in statement for change in plan["changes"] for statement in change["sql"])
    assert configured.config("?parts=schema")["config"]["schema"] == SCHEMA, "a plan changes nothing"


def test_a_rename_stays_a_rename(configured: Configured) -> None:
    document = copy.deepcopy(SCHEMA)
    columns = document["tables"]["notes"]["columns"]
    columns["closed"] = {**columns.pop("done"), "renamed_from": "done"}
    plan = configured.plan(schema=document)
    assert plan["confirm"] == []
    assert [change["kind"] for change in plan["changes"]] == ["change"]


def old_names(plan: Any) -> set[str]:
    return {each["field"] for each in plan["warnings"] if each["code"] == "renamed"}


def test_old_names_are_looked_for_in_what_the_plan_leaves(configured: Configured) -> None:
    uses = "export default async (_, ctx) => (await ctx.rows.list('notes')).data.map((note) => note.title);"
    for name in ("fixed", "kept", "removed", "unchanged"):
        configured.call("PUT", f"/v1/functions/{name}", {"source": uses, "on": ["notes.insert"]})
    hook = {"url": "http://127.0.0.1:8080/a", "events": ["notes.insert"], "filter": {"title": "x"}}
    with override_settings(OUTBOUND_ALLOWED_NETWORKS=["127.0.0.0/8"]):
        hooks = [configured.call("POST", "/v1/webhooks", {"name": name, **hook})["id"] for name in ("fixes", "keeps")]
    columns = {"heading": {"type": "text", "renamed_from": "title"}, "done": {"type": "boolean", "default": False}}
    schema = {"tables": {"notes": {"columns": columns}}}
    config = configured.config("?parts=functions,webhooks")["config"]
    functions, webhooks = config["functions"], config["webhooks"]
    del functions["removed"]
    functions["fixed"]["source"] = uses.replace("title", "heading")
    del functions["unchanged"]["source"]
    webhooks["fixes"]["filter"] = {"heading": "x"}
    del webhooks["keeps"]["filter"]
    assert old_names(configured.plan(schema=schema)) == {
        *(f"functions.{name}.source" for name in ("fixed", "kept", "removed", "unchanged")),
        *(f"webhooks.{webhook_id}.filter" for webhook_id in hooks),
    }
    found = old_names(configured.plan(schema=schema, functions=functions, webhooks=webhooks))
    assert found == {"functions.kept.source", "functions.unchanged.source", "webhooks.keeps.filter"}


def test_functions(configured: Configured) -> None:
    plan = configured.plan(
        functions={
            "digest": {"source": "export default () => 2", "allowed_hosts": ["a.example.com"], "on": ["notes.insert"]},
            "new": {"source": SOURCE, "secret_names": ["NEW_TOKEN"], "invoke": "public"},
        }
    )
    assert kinds(plan) == {
        "functions.digest.source": "change", "functions.digest.allowed_hosts": "trust", "functions.digest.on": "trust",
        "functions.new": "add", "functions.new.invoke": "trust",
    }  # fmt: skip
    assert plan["missing_secrets"] == ["functions.new.secrets.NEW_TOKEN"]
    assert plan["confirm"] == ["functions.digest.allowed_hosts", "functions.digest.on", "functions.new.invoke"]
    assert configured.plan(functions={})["confirm"] == ["functions.digest"]


def test_webhooks(configured: Configured) -> None:
    [(name, webhook)] = configured.config()["config"]["webhooks"].items()
    moved = webhook | {"url": "https://example.com/$secret:path", "events": ["notes.insert"], "enabled": False}
    plan = configured.plan(webhooks={name: moved, "crm": {"url": "https://crm.example.com/in", "events": ["*"]}})
    assert kinds(plan) == {
        f"webhooks.{name}.url": "trust", f"webhooks.{name}.enabled": "trust", f"webhooks.{name}.events": "change",
        "webhooks.crm": "add", "webhooks.crm.url": "trust",
    }  # fmt: skip
    assert plan["missing_secrets"] == [f"webhooks.{name}.url"]
    assert plan["changes"][-1]["before"] == "http://127.0.0.1:8080/$secret:path?key=$secret:key"
    assert configured.plan(webhooks={})["confirm"] == [f"webhooks.{name}"]


def test_a_filter_is_read_against_the_schema_that_comes_with_it(configured: Configured) -> None:
    document = copy.deepcopy(SCHEMA)
    document["tables"]["notes"]["columns"]["stars"] = {"type": "integer", "null": True}
    webhooks = {"w": {"url": "https://example.com/a", "events": ["notes.*"], "filter": {"stars": 1}}}
    assert kinds(configured.plan(schema=document, webhooks=webhooks))["webhooks.w"] == "add"
    answer = configured.ask({"config": {"webhooks": webhooks}})
    assert answer.status == 422
    assert all(field.startswith("config.webhooks.w.filter") for field in answer.fields)


def test_rules_too_large_for_a_statement_are_refused(configured: Configured) -> None:
    answer = configured.ask({"config": {"schema": with_grants(grants=16, conditions=90)}})
    assert (answer.status, answer.fields) == (422, {"config.schema.tables.a.rules.user": "too_large"})


def test_a_filter_that_is_invalid_already_blocks_no_plan_that_leaves_it(configured: Configured) -> None:
    [webhook_id] = configured.config("?parts=webhooks")["config"]["webhooks"]
    narrowed = {"filter": {"title": "a"}, "columns": {"notes": ["title"]}}
    configured.call("PATCH", f"/v1/webhooks/{webhook_id}", narrowed)
    document = copy.deepcopy(SCHEMA)
    columns = document["tables"]["notes"]["columns"]
    columns["heading"] = columns.pop("title") | {"renamed_from": "title"}
    configured.call("PUT", "/v1/schema", {"document": document})
    now = configured.config()["config"]
    plan = configured.plan(**now)
    at = f"webhooks.{webhook_id}"
    assert {each["field"]: each["code"] for each in plan["warnings"]} == {
        f"{at}.filter.title": "unknown", f"{at}.columns.notes.0": "unknown",
    }  # fmt: skip
    assert plan["changes"] == []
    configured.applied(functions={**now["functions"], "digest": {"timeout_ms": 1000}}, webhooks=now["webhooks"])

    item = now["webhooks"][webhook_id]
    for change in ({"filter": {"name": "b"}}, {"events": ["notes.insert"]}):
        answer = configured.ask({"config": {"webhooks": {webhook_id: item | change}}})
        assert answer.status == 422
        assert set(answer.fields) <= {
            f"config.{at}.filter.name",
            f"config.{at}.filter.title",
            f"config.{at}.columns.notes.0",
        }
    assert configured.ask({"config": {"webhooks": {"crm": item}}}).status == 422
    configured.applied(webhooks={webhook_id: item | {"filter": {"heading": "a"}, "columns": None}})
    assert configured.plan(**configured.config()["config"])["warnings"] == []


def test_sign_in_and_origins_are_always_to_be_confirmed(configured: Configured) -> None:
    auth = configured.config()["config"]["auth"]
    auth |= {"sign_up": "off", "app_name": "N", "redirect_uris": ["https://evil.example/done"]}
    auth["providers"]["acme"]["token_endpoint"] = "https://evil.example/token"
    auth["providers"]["next"] = {"client_id": "n", "issuer": "https://next.example"}
    plan = configured.plan(auth=auth, origins=["https://evil.example"])
    assert kinds(plan) == {
        "auth.app_name": "change", "auth.sign_up": "trust", "auth.redirect_uris": "trust",
        "auth.providers.acme.token_endpoint": "trust", "auth.providers.next": "add",
        "auth.providers.next.client_id": "trust", "auth.providers.next.issuer": "trust", "origins": "trust",
    }  # fmt: skip
    assert plan["missing_secrets"] == ["auth.providers.acme.client_secret", "auth.providers.next.client_secret"]
    assert [change["path"] for change in plan["changes"] if change["destructive"]] == [
        "auth.providers.acme.token_endpoint"
    ]
    assert "auth.app_name" not in plan["confirm"]
    assert len(plan["confirm"]) == 6


def test_added_events_of_unknown_tables_are_warned_of(configured: Configured) -> None:
    hook = {"url": "https://example.com/hook", "events": ["nots.insert", "notes.insert", "*.delete", "*"]}
    function = {"source": SOURCE, "on": ["tasks.insert"]}
    plan = configured.plan(webhooks={"w": hook}, functions={"f": function})
    assert plan["warnings"] == [
        {"field": "functions.f.on", "code": "no_such_table", "message": "There is no table tasks."},
        {"field": "webhooks.w.events", "code": "no_such_table", "message": "There is no table nots."},
    ]
    # The nearest name only to those who sent the schema: a key that may not read it learns no table's name.
    [warning] = configured.plan(schema=SCHEMA, webhooks={"w": hook})["warnings"]
    assert warning["message"] == 'There is no table nots; did you mean "notes"?'
    tables = {name: SCHEMA["tables"]["notes"] for name in ("notes", "nots")}
    assert configured.plan(schema={"tables": tables}, webhooks={"w": hook})["warnings"] == []


def test_a_source_that_seems_to_hold_a_secret_is_warned_of_and_not_quoted(configured: Configured) -> None:
    answer = configured.ask({"config": {"functions": {"digest": {"source": "\nconst k = 'sk_live_0123456789abcdef'"}}}})
    assert answer.json["warnings"] == [
        {
            "field": "functions.digest.source", "code": "secret",
            "message": "Line 2 looks like it holds a secret. Read it from ctx.secrets.",
        }
    ]  # fmt: skip
    assert "0123456789abcdef" not in answer.body.decode()


ENDPOINTS = {f"config.auth.providers.p.{each}_endpoint": "required" for each in ("authorization", "token", "userinfo")}


@pytest.mark.parametrize(
    ("parts", "fields"),
    [
        ({"webhooks": {"w": {"url": "http://10.0.0.1/", "events": ["*"]}}},
         {"config.webhooks.w.url": "address_not_allowed"}),
        ({"webhooks": {"w": {"url": "http://10.0.0.1/$secret:path", "events": ["*"]}}},
         {"config.webhooks.w.url": "address_not_allowed"}),
        ({"auth": {"providers": {"p": {"client_id": "x", "issuer": "https://a.example/$secret:path"}}}},
         {"config.auth.providers.p.issuer": "secret_missing"}),
        ({"auth": {"providers": {"p": {"client_id": "x"}}}}, ENDPOINTS),
        ({"auth": {"providers": {"acme": {"client_id": "x", "scopes": ['"']}}}},
         {"config.auth.providers.acme.scopes": "invalid_scope"}),
        ({"auth": {"providers": {"acme": {"client_id": "x", "issuer": "https://10.0.0.1"}}}},
         {"config.auth.providers.acme.issuer": "address_not_allowed"}),
    ],
)  # fmt: skip
def test_what_the_services_would_refuse(configured: Configured, parts: Any, fields: dict[str, str]) -> None:
    answer = configured.ask({"config": parts})
    assert (answer.status, answer.fields) == (422, fields), answer.json
    assert not StoredPlan.objects.using("us-east-1").filter(environment_id=configured.id).exists()


CANARY = "sk_live_c4n4ryc4n4ryc4n4ry"
URL = {"events": ["*"]}


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"functions": {"f": {"source": SOURCE, "secrets": {"K": CANARY}}}}, "config.functions.f.secrets"),
        ({"functions": {"f": {"allowed_hosts": [CANARY]}}}, "config.functions.f.allowed_hosts.0"),
        ({"functions": {CANARY: {"source": SOURCE}}}, "config.functions"),
        ({"webhooks": {"w": {**URL, "url": "https://a.example/x", "secret": CANARY}}}, "config.webhooks.w.secret"),
        ({"webhooks": {"w": {**URL, "url": f"https://a.example/x?key={CANARY}"}}}, "config.webhooks.w.url"),
        ({"webhooks": {"w": {**URL, "url": f"https://u:{CANARY}@a.example/"}}}, "config.webhooks.w.url"),
        ({"webhooks": {"w": {**URL, "url": f"https://hooks.slack.com/{CANARY}"}}}, "config.webhooks.w.url"),
        ({"webhooks": {"w": {"url": "https://a.example/x", "events": [CANARY]}}}, "config.webhooks.w.events.0"),
        ({"auth": {"providers": {"p": {"client_id": "x", "client_secret": CANARY}}}},
         "config.auth.providers.p.client_secret"),
        ({"auth": {"app_name": CANARY}}, "config.auth.app_name"),
        ({"schema": {"tables": {"t": {"columns": {"c": {"type": "text", "default": CANARY}}}}}},
         "config.schema.tables.t.columns.c.default"),
        ({"origins": [f"https://u:{CANARY}@a.example"]}, "config.origins.0"),
        ({CANARY: {}}, "config"),
    ],
)  # fmt: skip
def test_secrets_are_refused_and_never_repeated(configured: Configured, caplog: Any, config: Any, field: str) -> None:
    answer = configured.ask({"config": config})
    assert (answer.status, answer.fields) == (422, {field: "secret"})
    assert CANARY not in answer.body.decode()
    assert CANARY not in caplog.text + str([vars(record) for record in caplog.records])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"config": "required"}),
        ({"config": {}}, {"config": "required"}),
        ({"config": []}, {"config": "not_an_object"}),
        ({"config": {"origins": []}, "apply": True}, {"apply": "unknown_field"}),
        ({"config": {"rows": {}, "origins": []}}, {"config.rows": "unknown_field"}),
        ({"config": {"schema": None}}, {"config.schema.tables": "invalid"}),
        ({"config": {"auth": None}}, {"config.auth": "not_an_object"}),
        ({"config": {"functions": [1]}}, {"config.functions": "not_an_object"}),
        ({"config": {"functions": {"f": 1}}}, {"config.functions.f": "not_an_object"}),
        ({"config": {"functions": {"f": {}}}}, {"config.functions.f.source": "required"}),
        ({"config": {"functions": {"F!": {"source": ""}}}}, {"config.functions.F!": "invalid_name"}),
        ({"config": {"functions": {"f": {"source": SOURCE, "memory": 1}}}},
         {"config.functions.f.memory": "unknown_field"}),
        ({"config": {"functions": {"f": {"source": SOURCE, "secret_names": ["k"]}}}},
         {"config.functions.f.secret_names.0": "invalid_name"}),
        ({"config": {"functions": {"f": {"source": SOURCE, "schedule": "x"}}}},
         {"config.functions.f.schedule": "invalid_schedule"}),
        ({"config": {"webhooks": {"w": {"url": "ftp://a.example", "events": []}}}},
         {"config.webhooks.w.url": "invalid_scheme", "config.webhooks.w.events": "too_short"}),
        ({"config": {"auth": {"sign_up": "maybe"}}}, {"config.auth.sign_up": "not_among"}),
        ({"config": {"auth": {"redirect_uris": ["http://a.example"]}}}, {"config.auth.redirect_uris.0": "not_https"}),
        ({"config": {"origins": ["*", "https://a.example"]}}, {"config.origins": "invalid"}),
        ({"config": {"auth": {"app_name": "a\nb"}}}, {"config.auth.app_name": "invalid"}),
        ({"config": {"auth": {"app_url": "http://a.example"}}}, {"config.auth.app_url": "invalid_url"}),
        (
            {"config": {"auth": {"link_urls": {"sign_up": "https://a.example/"}}}},
            {"config.auth.link_urls.sign_up": "no_token"},
        ),
        ({"config": {"schema": {"tables": {"t": {"columns": {"c": {"type": "txt"}}}}}}},
         {"config.schema.tables.t.columns.c.type": "invalid"}),
    ],
)  # fmt: skip
def test_mistakes_are_named_by_their_path(configured: Configured, body: Any, fields: dict[str, str]) -> None:
    answer = configured.ask(body)
    assert (answer.status, answer.fields) == (422, fields), answer.json


@pytest.mark.exhaustive
def test_documents_that_are_too_large_or_take_long_to_read(configured: Configured) -> None:
    assert configured.ask({"config": {"functions": {"f": {"source": "x" * 2**20}}}}).status == 413
    many = {f"f{number}": {} for number in range(1001)}
    assert configured.ask({"config": {"functions": many}}).fields == {"config.functions": "too_many"}
    for text in ("eyJ-" * 120_000, "a" * 500_000, "a://" * 120_000, "-----BEGIN " * 40_000, "sk_a-" * 90_000):
        begun = time.monotonic()
        configured.ask({"config": {"functions": {"digest": {"source": text}}}})
        assert time.monotonic() - begun < within(2), text[:12]


@pytest.mark.exhaustive
def test_a_config_of_1_mb_is_planned_and_applied(configured: Configured) -> None:
    filler = "// " + "x" * 180_000 + "\n"
    document = {f"f{number}": {"source": f"{filler}export default () => {number};\n"} for number in range(5)}
    document["digest"] = {}
    begun = time.monotonic()
    plan = configured.plan(functions=document)
    assert len(plan["changes"]) == 5
    assert configured.apply(plan).status == 200
    assert time.monotonic() - begun < 20
    assert configured.plan(functions=configured.config("?parts=functions")["config"]["functions"])["changes"] == []


def test_what_the_plan_of_the_project_does_not_allow(configured: Configured, project: Project) -> None:
    services.change_project(project.pk, plan="free", actor=audit.SYSTEM)
    slow = configured.ask({"config": {"functions": {"digest": {"timeout_ms": 60_000}}}})
    assert slow.fields == {"config.functions.digest.timeout_ms": "over_plan"}
    many = configured.ask({"config": {"functions": {f"f{number}": {"source": SOURCE} for number in range(300)}}})
    assert (many.status, many.error) == (422, "quota_exceeded")


def test_the_limit_of_providers_is_checked_by_the_plan(configured: Configured) -> None:
    urls = {f"{each}_endpoint": f"https://idp.example/{each}" for each in ("authorization", "token", "userinfo")}

    def planned(first: int, end: int) -> dict[str, Any]:
        return {"auth": {"providers": {f"p{n:02}": {"client_id": "c", **urls} for n in range(first, end)}}}

    assert configured.apply(configured.plan(**planned(1, 21))).status == 200
    many = configured.ask({"config": planned(1, 22)})
    assert (many.status, many.error) == (422, "quota_exceeded")
    assert configured.apply(configured.plan(**planned(0, 20))).status == 200, "p20 makes room for p00"


@pytest.mark.parametrize("held", [(), READ, WRITE, (*READ, *WRITE[1:])])
def test_every_missing_scope_of_the_parts_is_in_one_response(configured: Configured, held: tuple[str, ...]) -> None:
    key = key_for(configured.id, "rows:write", *held)
    answer = configured.ask({"config": configured.config()["config"]}, key)
    assert (answer.status, answer.error) == (403, "forbidden")
    message = answer.json["error"]["message"]
    assert {scope for scope in (*READ, *WRITE) if scope in message} == {*READ, *WRITE} - set(held)


def test_only_the_scopes_of_the_parts_that_are_named_are_needed(configured: Configured) -> None:
    key = key_for(configured.id, "functions:read", "functions:deploy")
    assert configured.ask({"config": {"functions": {}}}, key).status == 200
    assert configured.ask({"config": {"functions": {}, "origins": []}}, key).status == 403


def test_viewers_users_others_and_publishable_keys(
    configured: Configured, api: Api, bob: User, charlie: User, project: Project, make_account: Any
) -> None:
    services.add_member(project.pk, email=bob.email, role="viewer", actor=audit.SYSTEM)
    user = make_account("ada", pool_id=configured.id)
    for token, status in (
        (token_of(bob), 403),
        (token_of(charlie), 404),
        (token_of(user, configured.id), 403),
        (publishable_key_for(configured.id), 403),
    ):
        body = {"config": {"origins": []}}
        answer = api.post("/v1/config/plan", token=token, environment=configured.id, json=body)
        assert answer.status == status


@pytest.mark.usefixtures("receivers_here")
def test_the_configuration_of_another_project_tells_nothing_of_it(configured: Configured, api: Api, bob: User) -> None:
    """Bob sends what he took from elsewhere: it is compared with his own environment, and ids mean nothing there."""
    stolen = configured.config()["config"]
    theirs = environment_of(make_project(bob, "Other", plan="pro"))
    key = key_for(theirs.pk, *READ, *WRITE)
    assert api.post("/v1/config/plan", token=key, environment=configured.id, json={"config": stolen}).status == 404
    answer = api.post("/v1/config/plan", token=key, json={"config": stolen})
    assert answer.status == 200
    [webhook] = stolen["webhooks"]
    assert kinds(answer.json)["functions.digest"] == kinds(answer.json)[f"webhooks.{webhook}"] == "add"
    assert set(answer.json["missing_secrets"]) == {
        "functions.digest.secrets.API_TOKEN", f"webhooks.{webhook}.url", "auth.providers.acme.client_secret"
    }  # fmt: skip


def test_a_plan_leaves_nothing_behind(configured: Configured, production: Environment) -> None:
    before = configured.config(), AuditEntry.objects.count()
    configured.plan(
        schema={"tables": {}}, functions={}, webhooks={}, auth={"sign_up": "off", "providers": {}}, origins=[]
    )
    assert (configured.config(), AuditEntry.objects.count()) == before


def test_a_preview_branch_takes_no_sign_in_settings(configured: Configured, project: Project) -> None:
    path = f"/v1/projects/{project.pk}/environments"
    configured.id = configured.call("POST", path, {"name": "blue", "from": "production"})["id"]
    assert configured.ask({"config": {"auth": {"sign_up": "open"}}}).fields == {"config.auth.sign_up": "unknown_field"}
    assert configured.plan(auth={"redirect_uris": []})["changes"] == []


def test_the_impact_of_changed_rules_is_counted_on_request(configured: Configured) -> None:
    document = copy.deepcopy(SCHEMA)
    document["tables"]["notes"]["rules"] = {"user": {"read": {"where": {"done": True}}}}
    assert "impact" not in configured.plan(schema=document)
    body = {"config": {"schema": document}, "impact": True}
    [told] = [each for each in configured.ask(body).json["impact"] if each["subject"] == "role user, whoever it is"]
    assert (told["table"], told["vanishing"], told["not_counted"]) == ("notes", 0, None)
    refused = configured.ask(body, key_for(configured.id, "schema:read", "schema:write"))
    assert (refused.status, "rows:read" in refused.json["error"]["message"]) == (403, True)


@pytest.mark.exhaustive
def test_50_tables_and_20_functions_are_planned_in_under_1_s(configured: Configured) -> None:
    columns = {f"c{number}": {"type": "text", "null": True} for number in range(10)}
    tables = {
        f"t{number}": {"columns": columns, "rules": {"user": {"read": {}}}, "indexes": [["c0"]]} for number in range(50)
    }
    functions = {f"f{number}": {"source": f"export default () => {number};\n"} for number in range(20)}
    configured.applied(schema={"tables": tables}, functions=functions)
    for number, table in enumerate(tables.values()):
        table["columns"] = {**columns, "more": {"type": "integer", "null": True}} if number % 2 else columns
    for number in range(0, 20, 2):
        functions[f"f{number}"] = {"source": f"export default () => {number + 1};\n"}
    begun = time.monotonic()
    plan = configured.plan(schema={"tables": tables}, functions=functions)
    took = time.monotonic() - begun
    assert len(plan["changes"]) == 35
    assert took < within(1), took


def test_schemas_of_one_project_are_read_one_after_the_other(
    configured: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading one can take many seconds of CPU, also if it is refused."""
    monkeypatch.setattr(computation_slots, "WAIT_SECONDS", 0.2)
    invalid = {"config": {"schema": {"tables": {"notes": {"columns": {"title": {"type": "letters"}}}}}}}
    assert configured.ask(invalid).status == 422
    environment = environment_ref(configured.id)
    assert environment is not None
    answer = in_slot(lambda environment: configured.ask(invalid))(environment)
    assert (answer.status, answer.error) == (503, "unavailable")
