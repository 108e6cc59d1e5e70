"""`POST /v1/config/apply`: what a plan says, all of it or nothing, by its author alone."""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.models import F
from django.db.models.functions import Now

from accounts import audit
from accounts.models import AuditEntry, User
from accounts.models.oauth import IdentityProvider
from accounts.models.registration import PoolSettings
from functions.models import Function, Secret
from platform_site.config import apply as config_apply
from platform_site.config.models import StoredPlan
from platform_site.config.parts import region_part
from platform_site.config.parts.changes import PlanChanges
from projects import services
from projects.models import Environment, Project
from tests.config.conftest import READ, SCHEMA, SOURCE, WRITE, Configured
from tests.projects.conftest import environment_of, key_for, publishable_key_for, token_of
from tests.support.client import Answer, Api
from webhooks.models import Webhook

pytestmark = [pytest.mark.django_db(transaction=True, databases="__all__"), pytest.mark.usefixtures("receivers_here")]
REGION = "us-east-1"


def schema_with_tags() -> Any:
    document = copy.deepcopy(SCHEMA)
    del document["tables"]["notes"]["columns"]["done"]
    document["tables"]["tags"] = {"columns": {"name": {"type": "text"}}}
    return document


def everything() -> dict[str, Any]:
    return {
        "schema": schema_with_tags(),
        "functions": {
            "digest": {"timeout_ms": 1000, "secret_names": ["API_TOKEN", "NEXT_TOKEN"]},
            "hourly": {"source": SOURCE, "schedule": "0 * * * *", "invoke": "key"},
        },
        "webhooks": {"crm": {"url": "http://127.0.0.1:8080/crm", "events": ["tags.insert"], "filter": {"name": "x"}}},
        "auth": {
            "sign_up": "invited", "app_name": "Notebook", "redirect_uris": ["https://b.example/done"],
            "providers": {"acme": {"client_id": "other"}, "next": {"client_id": "n", "issuer": "https://accounts.google.com"}},
        },
        "origins": ["https://b.example"],
    }  # fmt: skip


class TestEveryPart:
    @pytest.mark.exhaustive
    def test_the_environment_is_what_the_plan_says(self, configured: Configured) -> None:
        plan = configured.plan(**everything())
        before = AuditEntry.objects.count()
        answer = configured.apply(plan)
        assert (answer.status, answer.json["status"]) == (200, "applied"), answer.json
        now = configured.config()
        assert answer.json["version"] == now["version"]
        config = now["config"]
        assert config["schema"] == schema_with_tags()
        digest = config["functions"]["digest"]
        assert (digest["timeout_ms"], digest["source"]) == (1000, SOURCE)
        assert digest["secret_names"] == ["API_TOKEN", "NEXT_TOKEN"]
        assert config["functions"]["hourly"]["schedule"] == "0 * * * *"
        assert list(config["webhooks"]) == ["crm"]
        assert config["webhooks"]["crm"]["filter"] == {"name": "x"}
        assert (config["auth"]["sign_up"], config["auth"]["app_name"]) == ("invited", "Notebook")
        assert config["auth"]["redirect_uris"] == ["https://b.example/done"]
        assert sorted(config["auth"]["providers"]) == ["acme", "next"]
        assert config["origins"] == ["https://b.example"]
        again = configured.plan(**everything())
        assert again["changes"] == []
        [entry] = AuditEntry.objects.order_by("-at")[: AuditEntry.objects.count() - before]
        assert (entry.action, entry.actor_id, entry.detail["plan"]) == (
            "config.applied", configured.owner.pk, plan["plan"]
        )  # fmt: skip
        assert {"create table tags", "functions.hourly", "origins", "auth.sign_up"} <= set(entry.detail["changes"])

    def test_secrets_stay_and_a_replaced_provider_has_none(self, configured: Configured) -> None:
        provider = {"client_id": "notes", "token_endpoint": "https://evil.example/token"}
        configured.applied(functions={"digest": {"timeout_ms": 1000}}, auth={"providers": {"acme": provider}})
        [secret] = Secret.objects.using(REGION).filter(function__environment_id=configured.id)
        assert secret.sealed_value is not None
        acme = IdentityProvider.objects.get(environment_id=configured.id)
        assert (acme.token_endpoint, acme.client_secret) == ("https://evil.example/token", None)
        assert acme.userinfo_endpoint == "https://id.example/userinfo_endpoint", "what is left out stays"

    def test_a_replaced_provider_keeps_the_secrets_of_its_other_urls(self, configured: Configured) -> None:
        url = "https://id.example/token?tenant=abcdefghijklmnopqrstuvwx"
        IdentityProvider.objects.filter(environment_id=configured.id).update(token_endpoint=url)
        auth = configured.config("?parts=auth")["config"]["auth"]
        assert "$secret:" in auth["providers"]["acme"]["token_endpoint"]
        auth["providers"]["acme"]["userinfo_endpoint"] = "https://id.example/me"
        configured.applied(auth=auth)
        acme = IdentityProvider.objects.get(environment_id=configured.id)
        assert (acme.token_endpoint, acme.userinfo_endpoint) == (url, "https://id.example/me")

    def test_names_that_are_older_than_a_rule_stay_but_new_ones_follow_it(self, configured: Configured) -> None:
        IdentityProvider.objects.filter(environment_id=configured.id).update(display_name="Ac\x1bme")
        PoolSettings.objects.filter(environment_id=configured.id).update(app_name="www.example.com")
        auth = configured.config("?parts=auth")["config"]["auth"]
        auth["sign_up"] = "off"
        auth["providers"]["acme"]["client_id"] = "other"
        configured.applied(auth=auth)
        assert configured.config("?parts=auth")["config"]["auth"] == auth
        for name in ("acme", "next"):
            provider = auth["providers"]["acme"] | {"display_name": "Ne\x1bxt"}
            answer = configured.ask({"config": {"auth": {"providers": {name: provider}}}})
            assert answer.fields == {f"config.auth.providers.{name}.display_name": "malformed"}

    def test_functions_run_as_the_user_who_applies(self, configured: Configured) -> None:
        configured.applied(functions={"digest": {"on": ["notes.insert"]}})
        function = Function.objects.using(REGION).get(environment_id=configured.id)
        assert (function.events_kind, function.events_id) == ("account", configured.owner.pk)

    def test_items_that_are_left_out_are_removed(self, configured: Configured) -> None:
        configured.applied(functions={}, webhooks={}, auth={"providers": {}}, origins=[])
        config = configured.config()["config"]
        assert config["functions"] == config["webhooks"] == config["auth"]["providers"] == {}
        assert config["origins"] == []

    def test_a_secret_name_that_goes_must_be_confirmed(self, configured: Configured) -> None:
        plan = configured.plan(functions={"digest": {"secret_names": []}})
        assert plan["confirm"] == ["functions.digest.secret_names"]
        assert configured.apply(plan).status == 200
        assert not Secret.objects.using(REGION).filter(function__environment_id=configured.id).exists()

    def test_a_branch(self, configured: Configured, project: Project) -> None:
        path = f"/v1/projects/{project.pk}/environments"
        parent = configured.id
        configured.id = configured.call("POST", path, {"name": "blue", "from": "production"})["id"]
        configured.applied(schema=schema_with_tags(), auth={"redirect_uris": ["https://c.example"]}, origins=[])
        assert configured.config("?parts=auth")["config"]["auth"] == {"redirect_uris": ["https://c.example"]}
        configured.id = parent
        assert configured.config("?parts=schema")["config"]["schema"] == SCHEMA

    def test_a_plan_without_changes(self, configured: Configured) -> None:
        now = configured.config()
        assert configured.applied(**now["config"])["version"] == now["version"]

    @pytest.mark.exhaustive
    def test_a_new_unique_constraint(self, configured: Configured) -> None:
        document = copy.deepcopy(SCHEMA)
        document["tables"]["notes"]["unique"] = [["title"]]
        plan = configured.plan(schema=document, origins=[])
        for title in ("a", "a"):  # after the plan, which would refuse them
            configured.call("POST", "/v1/rows/notes", {"title": title})
        answer = configured.apply(plan)
        assert answer.status == 422
        assert configured.config("?parts=origins")["config"]["origins"] == ["https://a.example"]
        for row in configured.call("GET", "/v1/rows/notes")["data"][1:]:
            configured.api.request(
                "DELETE", f"/v1/rows/notes/{row['id']}", token=configured.token, environment=configured.id
            )
        assert configured.applied(schema=document, origins=[])["status"] == "applied"


def state(configured: Configured) -> Any:
    return configured.config(), AuditEntry.objects.exclude(action__regex=r"^(session|key|member)\.").count()


class TestRefused:
    @pytest.mark.exhaustive
    def test_without_confirmation(self, configured: Configured) -> None:
        plan = configured.plan(**everything())
        before = state(configured)
        answer = configured.apply(plan, confirm=plan["confirm"][1:])
        assert (answer.status, answer.fields) == (422, {"confirm": "unconfirmed"})
        assert [field["message"] for field in answer.json["error"]["fields"]] == plan["confirm"][:1]
        assert state(configured) == before
        assert configured.apply(plan).status == 200, "the plan is still good"

    @pytest.mark.parametrize(
        ("method", "path", "body"),
        [
            ("PUT", "/v1/functions/digest", {"source": "export default () => 3"}),
            ("PUT", "/v1/schema", {"document": {"tables": {}}, "confirm": ["drop table notes"]}),
            ("POST", "/v1/webhooks", {"url": "http://127.0.0.1:8080/", "events": ["*"]}),
            ("PATCH", "/v1/auth/settings", {"app_name": "Changed"}),
            ("PUT", "/v1/redirect-uris", {"redirect_uris": []}),
        ],
    )
    def test_412_after_the_environment_changed(self, configured: Configured, method: str, path: str, body: Any) -> None:
        plan = configured.plan(**everything())
        configured.call(method, path, body)
        before = state(configured)
        answer = configured.apply(plan)
        assert (answer.status, answer.error) == (412, "precondition_failed")
        assert state(configured) == before

    def test_a_change_of_another_part_does_not_matter(self, configured: Configured) -> None:
        plan = configured.plan(origins=[])
        configured.call("PUT", "/v1/functions/digest", {"source": "export default () => 3"})
        assert configured.apply(plan).status == 200

    def test_an_expired_plan(self, configured: Configured) -> None:
        plan = configured.plan(origins=[])
        stored = StoredPlan.objects.using(REGION).filter(pk=plan["plan"])
        stored.update(expires_at=F("created_at"))
        assert configured.apply(plan).status == 412

    def test_another_members_plan(self, configured: Configured, bob: User, project: Project) -> None:
        services.add_member(project.pk, email=bob.email, role="owner", actor=audit.SYSTEM)
        plan = configured.plan(origins=[])
        before = state(configured)
        body = {"plan": plan["plan"], "confirm": plan["confirm"]}
        for token in (token_of(bob), key_for(configured.id, *READ, *WRITE)):
            answer = configured.api.post("/v1/config/apply", token=token, environment=configured.id, json=body)
            assert (answer.status, answer.error) == (403, "forbidden")
        assert state(configured) == before

    @pytest.mark.parametrize("held", [("rows:write",), READ, WRITE])
    def test_every_missing_scope_is_in_one_response(self, configured: Configured, held: tuple[str, ...]) -> None:
        answer = configured.apply(configured.plan(**everything()), key_for(configured.id, *held))
        assert (answer.status, answer.error) == (403, "forbidden")
        message = answer.json["error"]["message"]
        assert {scope for scope in (*READ, *WRITE) if scope in message} == {*READ, *WRITE} - set(held)

    def test_viewers_former_members_users_and_publishable_keys(
        self, configured: Configured, bob: User, charlie: User, project: Project, make_account: Any
    ) -> None:
        services.add_member(project.pk, email=bob.email, role="developer", actor=audit.SYSTEM)
        bobs = token_of(bob)
        body = {"config": {"origins": []}}
        theirs = configured.api.post("/v1/config/plan", token=bobs, environment=configured.id, json=body).json
        services.change_member(project.pk, bob.pk, role="viewer", actor=audit.SYSTEM)
        user = make_account("ada", pool_id=configured.id)
        before = state(configured)
        for token, status in (
            (bobs, 403),
            (token_of(charlie), 404),
            (token_of(user, configured.id), 403),
            (publishable_key_for(configured.id), 403),
            (None, 401),
        ):
            body = {"plan": theirs["plan"], "confirm": theirs["confirm"]}
            answer = configured.api.post("/v1/config/apply", token=token, environment=configured.id, json=body)
            assert answer.status == status
        services.remove_member(project.pk, bob.pk, actor=audit.SYSTEM)
        body = {"plan": theirs["plan"], "confirm": theirs["confirm"]}
        answer = configured.api.post("/v1/config/apply", token=bobs, environment=configured.id, json=body)
        assert answer.status == 404
        assert state(configured) == before

    def test_a_plan_of_another_environment(self, configured: Configured, project: Project) -> None:
        plan = configured.plan(origins=[])
        configured.id = environment_of(project, "development").pk
        assert configured.apply(plan).status == 404

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            ({}, 422), ({"plan": 1}, 422), ({"plan": "x" * 41}, 422), ({"plan": "pln_"}, 404),
            ({"plan": "pln_00000000000000000000000000"}, 404), ({"plan": "pln_x", "confirm": "*"}, 422),
            ({"plan": "pln_x", "force": True}, 422),
        ],
    )  # fmt: skip
    def test_bad_input(self, configured: Configured, body: Any, status: int) -> None:
        answer = configured.api.post("/v1/config/apply", token=configured.token, environment=configured.id, json=body)
        assert answer.status == status

    @pytest.mark.parametrize(
        ("parts", "field"),
        [
            ({"functions": {"digest": {"source": "export default ("}}}, "config.functions.digest.source"),
            ({"webhooks": {"w": {"url": "https://a.example/$secret:path", "events": ["*"]}}}, "config.webhooks.w.url"),
            ({"auth": {"providers": {"p": {"client_id": "x", "issuer": "https://127.0.0.1:4433"}}}},
             "config.auth.providers.p.issuer"),
        ],
    )  # fmt: skip
    def test_what_the_services_refuse_changes_nothing(self, configured: Configured, parts: Any, field: str) -> None:
        plan = configured.plan(**parts, schema=schema_with_tags(), origins=[])
        before = state(configured)
        answer = configured.apply(plan)
        assert answer.status == 422, answer.json
        assert field in answer.fields
        assert state(configured) == before
        environment = Environment.objects.get(pk=configured.id)
        assert (environment.applying_plan, environment.status) == (None, "ready")

    def test_a_function_that_would_run_as_a_key_without_its_scopes(self, configured: Configured) -> None:
        key = key_for(configured.id, "functions:read", "functions:deploy")
        body = {"config": {"functions": {"digest": {"on": ["notes.insert"]}}}}
        before = state(configured)
        answer = configured.apply(configured.ask(body, key).json, key)
        assert answer.status == 403
        assert "rows:read" in answer.json["error"]["message"]
        assert state(configured) == before
        assert Environment.objects.get(pk=configured.id).applying_plan is None


@pytest.mark.parametrize("further", [{}, {"events": ["notes.insert"], "enabled": True}])
def test_a_webhook_with_events_of_runs_needs_the_right_to_read_functions(
    configured: Configured, further: dict[str, Any]
) -> None:
    """Also if the plan leaves these events out: the deliveries that wait go to its new URL."""
    url = "http://127.0.0.1:8080/{}"
    hook = configured.call("POST", "/v1/webhooks", {"name": "ops", "url": url.format("ops"), "events": ["*"]})
    body = {"config": {"webhooks": {"ops": {"url": url.format("other"), **further}}}, "keep": ["webhooks"]}
    scopes = ["webhooks:read", "webhooks:write", "rows:read"]
    key = key_for(configured.id, *scopes)
    answer = configured.ask(body, key)
    assert (answer.status, answer.error) == (403, "forbidden")
    assert "functions:read" in answer.json["error"]["message"]
    unchanged = {"config": {"webhooks": {"ops": {}}}, "keep": ["webhooks"]}
    assert configured.ask(unchanged, key).status == 200
    # The events are added after the plan.
    configured.call("PATCH", f"/v1/webhooks/{hook['id']}", {"events": ["notes.insert"]})
    plan = configured.ask(body, key).json
    configured.call("PATCH", f"/v1/webhooks/{hook['id']}", {"events": ["*"]})
    assert configured.apply(plan, key).status == 403
    assert Webhook.objects.using(REGION).get(pk=hook["id"]).url == url.format("ops")
    able = key_for(configured.id, *scopes, "functions:read")
    assert configured.apply(configured.ask(body, able).json, able).status == 200


def test_a_schema_that_changes_during_the_checks_is_412(
    configured: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new table would be dropped, which the plan does not confirm."""
    document = copy.deepcopy(SCHEMA)
    document["tables"]["tags"] = {"columns": {"name": {"type": "text"}}}
    theirs = copy.deepcopy(SCHEMA)
    theirs["tables"]["labels"] = {"columns": {"name": {"type": "text"}}}
    plan = configured.plan(schema=document)
    load = region_part.load_sources

    def load_while_others_change(changes: Any) -> None:
        load(changes)
        configured.call("PUT", "/v1/schema", {"document": theirs})

    monkeypatch.setattr(region_part, "load_sources", load_while_others_change)
    answer = configured.apply(plan)
    assert (answer.status, answer.error) == (412, "precondition_failed")
    assert configured.config("?parts=schema")["config"]["schema"] == theirs


class TestUrlsOfWebhooks:
    """A plan stores no credential, so they come when it is applied."""

    URL = "https://hooks.slack.com/services/T0/B0/abcdefghijklmnopqrstuvwx"
    PLANNED = {"url": "https://hooks.slack.com/$secret:url", "events": ["notes.insert"]}

    def test_one_is_given_with_the_apply(self, configured: Configured) -> None:
        plan = configured.plan(webhooks={"crm": self.PLANNED})
        assert plan["missing_secrets"] == ["webhooks.crm.url"]
        answer = configured.apply(plan, urls={"webhooks.crm.url": self.URL})
        assert answer.status == 200, answer.json
        assert Webhook.objects.using(REGION).live(configured.id).get().url == self.URL
        assert "abcdef" not in StoredPlan.objects.using(REGION).get(pk=plan["plan"]).document_text
        assert configured.apply(plan, urls={"webhooks.crm.url": self.URL}).status == 200, "a repeated apply"

    @pytest.mark.parametrize(
        ("urls", "fields"),
        [
            ({"webhooks.crm.url": "https://other.example/x"}, {"config.webhooks.crm.url": "invalid"}),
            ({"webhooks.crm.url": "http://hooks.slack.com/x"}, {"config.webhooks.crm.url": "invalid"}),
            ({"webhooks.crm.url": 1}, {"config.webhooks.crm.url": "invalid"}),
            (
                {"webhooks.crm.url": "https://hooks.slack.com/$secret:url"},
                {"config.webhooks.crm.url": "secret_missing"},
            ),
            ({"webhooks.crm": "https://hooks.slack.com/x"}, {"urls.webhooks.crm": "unknown"}),
            ({"webhooks.erp.url": "https://hooks.slack.com/x"}, {"urls.webhooks.erp.url": "unknown"}),
        ],
    )
    def test_others_are_refused(self, configured: Configured, urls: Any, fields: Any) -> None:
        plan = configured.plan(webhooks={"crm": self.PLANNED})
        assert configured.apply(plan, urls=urls).fields == fields

    def test_one_of_a_url_that_the_plan_does_not_change_is_refused(self, configured: Configured) -> None:
        now = configured.config("?parts=webhooks")["config"]["webhooks"]
        [name] = now
        assert "$secret:" in now[name]["url"]
        path = f"webhooks.{name}.url"
        answer = configured.apply(configured.plan(webhooks=now), urls={path: "http://127.0.0.1:8080/other"})
        assert answer.fields == {f"urls.{path}": "unknown"}

    def test_a_webhook_is_renamed_and_keeps_its_url(self, configured: Configured) -> None:
        before = Webhook.objects.using(REGION).live(configured.id).get()
        configured.applied(webhooks={before.pk: {"name": "crm"}})
        configured.applied(webhooks={"crm": {"name": "crm", "events": ["notes.delete"]}})
        after = Webhook.objects.using(REGION).live(configured.id).get()
        assert (after.pk, after.name, after.url) == (before.pk, "crm", before.url)


class TestRepeated:
    @pytest.mark.exhaustive
    def test_a_plan_applied_twice_changes_nothing(self, configured: Configured) -> None:
        plan = configured.plan(**everything())
        first = configured.apply(plan)
        configured.call("PATCH", "/v1/auth/settings", {"sign_up": "off"})
        before = state(configured)
        second = configured.apply(plan)
        assert second.status == 200
        assert second.json["plan"] == first.json["plan"]
        assert state(configured) == before

    def test_it_may_be_repeated_after_a_later_plan(self, configured: Configured) -> None:
        crm = {"url": "http://127.0.0.1:8080/crm", "events": ["notes.insert"], "filter": {"done": True}}
        plan = configured.plan(webhooks={"crm": crm})
        assert configured.apply(plan).status == 200
        configured.applied(webhooks={}, schema=schema_with_tags())
        answer = configured.apply(plan)
        assert (answer.status, answer.json["status"]) == (200, "applied"), "although `done` is gone"

    @pytest.mark.exhaustive
    def test_one_plan_concurrently_is_applied_once(self, configured: Configured) -> None:
        plan = configured.plan(**everything())
        before = AuditEntry.objects.count()
        answers = concurrently([lambda: configured.apply(plan)] * 4)
        assert {answer.status for answer in answers} <= {200, 409, 412, 503}, [answer.json for answer in answers]
        assert 200 in {answer.status for answer in answers}
        assert AuditEntry.objects.count() == before + 1
        assert configured.plan(**everything())["changes"] == []

    def test_of_two_plans_one_wins(self, configured: Configured) -> None:
        plans = [
            configured.plan(origins=[origin], functions={}) for origin in ("https://x.example", "https://y.example")
        ]
        answers = concurrently([lambda plan=plan: configured.apply(plan) for plan in plans])  # type: ignore[misc]
        assert sorted(answer.status for answer in answers) in ([200, 409], [200, 412])

    @pytest.mark.exhaustive
    def test_deployments_at_the_same_time_are_not_lost(self, configured: Configured) -> None:
        plan = configured.plan(**everything())
        source = {"source": "export default () => 9"}
        deployed, applied = concurrently(
            [
                lambda: configured.api.request(
                    "PUT", "/v1/functions/digest", token=configured.token, environment=configured.id, json=source
                ),
                lambda: configured.apply(plan),
            ]
        )
        assert deployed.status == 200
        assert applied.status in (200, 412)
        assert configured.config("?parts=functions")["config"]["functions"]["digest"]["source"] == source["source"]

    def test_a_deployment_after_the_checks_is_not_lost(
        self, configured: Configured, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plan = configured.plan(**everything())
        source, begin = {"source": "export default () => 9"}, config_apply._begin

        def deploy() -> Answer:
            path = "/v1/functions/digest"
            return configured.api.request("PUT", path, token=configured.token, environment=configured.id, json=source)

        def begin_late(changes: PlanChanges) -> None:
            assert concurrently([deploy])[0].status == 200
            begin(changes)

        monkeypatch.setattr(config_apply, "_begin", begin_late)
        assert configured.apply(plan).status == 412
        assert configured.config("?parts=functions")["config"]["functions"]["digest"]["source"] == source["source"]


def concurrently(calls: list[Callable[[], Answer]]) -> list[Answer]:
    def called(call: Callable[[], Answer]) -> Answer:
        try:
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(called, calls))


class TestStoredPlans:
    def test_a_deleted_environment_leaves_none(self, configured: Configured, project: Project) -> None:
        path = f"/v1/projects/{project.pk}/environments"
        configured.id = configured.call("POST", path, {"name": "blue", "from": "production"})["id"]
        configured.plan(origins=[])
        services.delete_environment(project.pk, configured.id, actor=audit.SYSTEM)
        assert not StoredPlan.objects.using(REGION).filter(environment_id=configured.id).exists()

    @pytest.mark.exhaustive
    def test_an_author_has_twenty_and_the_oldest_goes(self, configured: Configured) -> None:
        plans = [configured.plan(origins=[]) for _ in range(21)]
        assert configured.apply(plans[0]).status == 404
        assert configured.apply(plans[1]).status == 200

    def test_old_ones_are_deleted(self, configured: Configured) -> None:
        from platform_site.config.tasks import delete_old_plans

        kept, old, done, unfinished = (configured.plan(origins=[f"https://{name}.example"]) for name in "axyz")
        configured.apply(done)
        stored = StoredPlan.objects.using(REGION).exclude(pk=kept["plan"])
        stored.update(expires_at=F("created_at") - timedelta(days=2))
        stored.filter(pk=unfinished["plan"]).update(state=StoredPlan.State.APPLIED)
        environment = Environment.objects.filter(pk=configured.id)
        environment.update(applying_plan=unfinished["plan"], applying_since=Now())
        delete_old_plans()
        found = StoredPlan.objects.using(REGION).filter(environment_id=configured.id)
        assert {*found.values_list("pk", flat=True)} == {kept["plan"], unfinished["plan"]}
        environment.update(applying_plan=None, applying_since=None)
        assert configured.apply(old).status == 404


@pytest.mark.exhaustive
def test_a_large_configuration_is_planned_and_applied(api: Api, configured: Configured) -> None:
    document = copy.deepcopy(SCHEMA)
    for number in range(30):
        document["tables"][f"t{number}"] = {"columns": {"name": {"type": "text"}}}
    functions = {f"f{number}": {"timeout_ms": 1000, "source": SOURCE} for number in range(5)}
    configured.applied(schema=document, functions=functions)
    assert len(configured.config("?parts=functions")["config"]["functions"]) == 5
    assert Webhook.objects.using(REGION).filter(environment_id=configured.id, deleted_at=None).count() == 1
