"""The demo that `manage.py up` creates at its first start: a small task tracker. Each of STEPS runs once per data
directory and is recorded, so later versions add steps and deletions stay. Random passwords and keys are in
`<data-dir>/demo.json` (mode 0600)."""

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from django.db.models import QuerySet

from accounts.audit import SYSTEM
from accounts.keys import permissions
from accounts.models import User
from accounts.users import service as accounts
from functions.deploy import service as functions
from functions.deploy import trial
from functions.execution.run_as import restore_caller
from functions.models import Function
from platform_site import demo_receiver, outbound
from platform_site.embedded.data_dir import Layout, read_json, write_private
from platform_site.http.errors import ValidationFailed
from platform_site.identity.callers import ENVIRONMENT_SCOPES, Caller, EnvironmentRef
from projects import services as projects
from projects.directory.environments import environment_ref
from projects.models import Environment
from rows import services as rows
from rows.migrate import service as schema_service
from rows.migrate import versions as schema_versions
from rows.query.service import ListQuery
from rows.rules.principal import Principal
from webhooks.models import Webhook
from webhooks.subscriptions import service as webhooks

Facts = dict[str, Any]

DOMAIN: Final = "example.com"
CONTENT: Final = Path(__file__).with_name("tracker")


def complete(layout: Layout, *, base_url: str) -> Facts:
    """Run missing steps, and write the facts; repeatable. An emptied control database gets the demo again."""
    facts, done = read_json(layout.demo_file), read_json(layout.demo_steps_file).get("done", [])
    if done and not User.objects.filter(pk=facts.get("account", {}).get("id")).exists():
        facts, done = {}, []
    facts["base_url"] = base_url
    for name, step in STEPS.items():
        if name not in done:
            step(facts)
            done = [*done, name]
            # In this order: if the process ends in between, the step runs again and finds what it made.
            write_private(layout.demo_file, facts)
            write_private(layout.demo_steps_file, {"done": done})
    _update_webhook_url(facts)
    write_private(layout.demo_file, facts)
    return facts


def _people(facts: Facts) -> None:
    admin = _person(None, f"admin@{DOMAIN}", "Demo administrator", is_staff=True)
    facts["admin"] = {"email": admin["email"], "password": admin["password"]}
    facts["account"] = _person(None, f"owner@{DOMAIN}", "Demo owner")


def _project(facts: Facts) -> None:
    account = facts["account"]["id"]
    found = Environment.objects.filter(project__created_by_id=account, project__deleted_at=None)
    environments = {environment.name: environment for environment in found}
    if not environments:
        project = projects.create_project(
            account_id=account, name="Task tracker", region="us-east-1", plan="free", actor=SYSTEM
        )
        environments = {environment.name: environment for environment in project.environments.all()}
    facts["project_id"] = environments["production"].project_id
    facts["environments"] = {name: environments[name].pk for name in ("production", "development")}
    authority = permissions.operators(environment_id=environments["production"].pk)
    _, facts["server_key"] = accounts.issue_key(
        name="Demo", scopes=ENVIRONMENT_SCOPES, authority=authority, actor=SYSTEM, created_by_id=account
    )


def _app_users(facts: Facts) -> None:
    pool = facts["environments"]["production"]
    facts["app_users"] = [_person(pool, f"{name.lower()}@{DOMAIN}", name) for name in ("Ada", "Grace")]


def _schema(facts: Facts) -> None:
    environment = _production(facts)
    if environment is not None and schema_versions.current(environment).version == 0:
        schema_service.change(environment, _content("schema.json"), actor=SYSTEM)


def _rows(facts: Facts) -> None:
    """Written as the users that own them."""
    environment = _production(facts)
    if environment is None or schema_versions.current(environment).schema != schema_service.read(
        _content("schema.json")
    ):
        return  # the user has changed the schema: the rows may not fit
    for user, lists in zip(facts["app_users"], _content("rows.json").values(), strict=True):
        found = restore_caller("user", user["id"], facts["environments"]["production"])
        if found is not None:
            _fill(*found, lists)


def _fill(caller: Caller, environment: EnvironmentRef, lists: list[Facts]) -> None:
    who = Principal.of(caller)
    for wanted in lists:
        list_id = _row(environment, who, "lists", {"name": wanted["name"]})
        for task in wanted["tasks"]:
            due = {"due_on": task["due_on"]} if "due_on" in task else {}
            task_id = _row(environment, who, "tasks", {"list_id": list_id, "title": task["title"]}, **due)
            if task.get("done"):
                rows.update_row(environment, who, "tasks", task_id, {"done": True})
            for comment in task["comments"]:
                _row(environment, who, "comments", {"task_id": task_id, "body": comment})


def _row(environment: EnvironmentRef, who: Principal, table: str, known_by: Facts, **more: Any) -> str:
    found = json.loads(rows.list_rows(environment, who, table, ListQuery(where=known_by, limit=1)).body)["data"]
    row = found[0] if found else json.loads(rows.insert_row(environment, who, table, {**known_by, **more}).body)
    return str(row["id"])


def _functions(facts: Facts) -> None:
    environment = _production(facts)
    if environment is None:
        return
    known = set(Function.objects.of(environment).values_list("name", flat=True))
    for name in ("sum", "open-tasks"):
        if name not in known:
            values = {"source": (CONTENT / f"{name}.ts").read_text()}
            trial.try_out(environment, name, values)
            functions.deploy(environment, name, values, actor=SYSTEM)


def _webhook(facts: Facts) -> None:
    """A webhook to the service itself, unless `OUTBOUND_ALLOWED_NETWORKS` excludes this machine."""
    environment = _production(facts)
    if environment is None:
        return
    url = facts["base_url"] + demo_receiver.PATH
    try:
        outbound.check_url(url)
    except ValidationFailed:
        return
    for interrupted in _own_webhooks(environment):  # of a run that ended before it wrote the secret
        webhooks.delete_webhook(environment, interrupted.pk, actor=SYSTEM)
    values = {
        "name": "demo",
        "url": url,
        "events": ["tasks.*", "comments.insert"],
        "description": "The demo: the service is its own receiver",
    }
    webhook, secret = webhooks.create_webhook(environment, values, actor=SYSTEM)
    facts["webhook"] = {"id": webhook.pk, "secret": secret}


def _own_webhooks(environment: EnvironmentRef) -> "QuerySet[Webhook]":
    return Webhook.objects.of(environment).filter(url__endswith=demo_receiver.PATH)


def _update_webhook_url(facts: Facts) -> None:
    environment = _production(facts) if "webhook" in facts else None
    if environment is None:
        return
    url = facts["base_url"] + demo_receiver.PATH
    found = _own_webhooks(environment).filter(pk=facts["webhook"]["id"]).first()
    if found is not None and found.url != url:
        webhooks.change_webhook(environment, found.pk, {"url": url}, actor=SYSTEM)


STEPS: Final[dict[str, Callable[[Facts], None]]] = {
    "people": _people,
    "project": _project,
    "app users": _app_users,
    "schema": _schema,
    "rows": _rows,
    "functions": _functions,
    "webhook": _webhook,
}


def _person(pool_id: str | None, email: str, name: str, *, is_staff: bool = False) -> Facts:
    password = secrets.token_urlsafe(12)
    user = User.objects.in_pool(pool_id).filter(email=email).first()
    if user is None:
        user = accounts.create_user(
            pool_id=pool_id, email=email, password=password, name=name, is_staff=is_staff, actor=SYSTEM
        )
    else:
        accounts.change_user(user, password=password, actor=SYSTEM)
    return {"id": user.pk, "email": email, "password": password}


def _production(facts: Facts) -> EnvironmentRef | None:
    return environment_ref(facts["environments"]["production"])


def _content(name: str) -> Facts:
    content: Facts = json.loads((CONTENT / name).read_text())
    return content
