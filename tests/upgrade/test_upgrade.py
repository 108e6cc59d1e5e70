"""A database that the first release made (`first_release/`) is migrated by this one, without loss, and goes on working.

`first_release/` holds dumps of the four databases of a `manage.py up` of that release, driven through its API, and what
it answered then (`facts.json`; the key in it opens nothing but these dumps). Here they are restored into databases of
their own, migrated by the command that a deployment runs, and asked again.
"""

import gzip
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.management import call_command
from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from psycopg import sql

from accounts.tokens import signing_keys
from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import region_database
from platform_site.postgres.prepared import opened_door
from rows.query import schema_cache
from tests.client import Answer, Api

FIRST_RELEASE = Path(__file__).parent / "first_release"
DATABASES = {"default": "control", **{region: region_database(region) for region in django_settings.REGION_DATABASES}}
DROPPED: dict[str, str] = {}
"""`schema.table` or `schema.table.column` that a later release took away on purpose, and why nothing is lost by it."""

Contents = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIRST_RELEASE / "facts.json").read_text())
    return found


@pytest.fixture(scope="module")
def before(django_db_setup: None, django_db_blocker: Any) -> Iterator[Contents]:
    """The databases of the first release under our aliases, already migrated; and all that they held before that."""
    layout = django_settings.LAYOUT
    names = {alias: f"upgrade_{name}" for alias, name in DATABASES.items()}
    ours = {alias: connections[alias].settings_dict["NAME"] for alias in names}
    with embedded_postgres.connect(layout) as server:
        for alias, name in names.items():
            server.execute(sql.SQL("CREATE DATABASE {} OWNER platform").format(sql.Identifier(name)))
            dump = gzip.decompress((FIRST_RELEASE / f"{DATABASES[alias]}.sql.gz").read_bytes())
            subprocess.run(
                [embedded_postgres.binaries() / "psql", "-qX", "-v", "ON_ERROR_STOP=1", "-d", layout.postgres_url(name)],
                input=dump, check=True, capture_output=True,
            )  # fmt: skip
    try:
        with django_db_blocker.unblock():
            _point_to(names)
            held = {f"{alias}:{table}": rows for alias in names for table, rows in contents(alias).items()}
            call_command("migrate", verbosity=0, interactive=False)
            yield held
    finally:
        with django_db_blocker.unblock():
            _point_to(ours)
        with embedded_postgres.connect(layout) as server:
            for name in names.values():
                server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _point_to(names: dict[str, str]) -> None:
    for alias, name in names.items():
        connections[alias].close()
        connections[alias].settings_dict["NAME"] = name
    signing_keys.forget()
    schema_cache.forget_all()


def contents(alias: str) -> Contents:
    """Every row of every table of a database, tenants' tables among them, as PostgreSQL's own JSON."""
    found: Contents = {}
    with opened_door(), connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        for schema, table in cursor.fetchall():
            cursor.execute(sql.SQL("SELECT row_to_json(t)::text FROM {} t").format(sql.Identifier(schema, table)))
            found[f"{schema}.{table}"] = [json.loads(text) for (text,) in cursor.fetchall()]
    return found


@pytest.fixture
def migrated(before: Contents, facts: dict[str, Any], django_db_blocker: Any, settings: Any) -> Iterator[Contents]:
    settings.ENCRYPTION_KEYS = [facts["encryption_key"]]
    settings.RATE_LIMIT_FACTOR = 1000
    with django_db_blocker.unblock():
        yield before


def test_nothing_is_left_to_migrate(migrated: Contents) -> None:
    for alias in DATABASES:
        executor = MigrationExecutor(connections[alias])
        assert executor.migration_plan(executor.loader.graph.leaf_nodes()) == []


def test_every_row_and_every_column_is_still_there(migrated: Contents) -> None:
    after = {f"{alias}:{table}": rows for alias in DATABASES for table, rows in contents(alias).items()}
    assert len(migrated) > 60
    assert sum(map(len, migrated.values())) > 200
    for table, rows in migrated.items():
        name = table.partition(":")[2]
        if name in DROPPED:
            continue
        assert table in after
        if not rows:
            continue
        kept = [column for column in rows[0] if f"{name}.{column}" not in DROPPED]
        lost = Counter(_cells(row, kept) for row in rows) - Counter(_cells(row, kept) for row in after[table])
        assert not lost, table


def _cells(row: dict[str, Any], columns: list[str]) -> str:
    return json.dumps([row[column] for column in columns], sort_keys=True)


def test_what_it_answered_then_it_answers_now(api: Api, migrated: Contents, facts: dict[str, Any]) -> None:
    """Old keys and passwords work; each member that an answer had has the value that it had."""
    tokens = tokens_of(api, facts)
    for asked in facts["answers"]:
        answer = api.get(asked["path"], token=tokens[asked["who"]], environment=asked["environment"])
        assert answer.status == 200, (asked["path"], answer.json)
        agree(answer.json, asked["answer"], asked["path"])


def agree(now: Any, then: Any, where: str) -> None:
    if isinstance(then, dict):
        for name, value in then.items():
            assert name in now, f"{where}: {name} is gone"
            agree(now[name], value, f"{where}.{name}")
    elif isinstance(then, list):
        assert len(now) == len(then), where
        for one, other in zip(now, then, strict=True):
            agree(one, other, where)
    else:
        assert now == then, where


def tokens_of(api: Api, facts: dict[str, Any]) -> dict[str, str]:
    production = facts["facts"]["environments"]["production"]
    found = {"key": facts["facts"]["server_key"], "old key": facts["old_key"]}
    for who, user, environment in (
        ("owner", facts["facts"]["account"], None),
        ("user", facts["facts"]["app_users"][0], production),
    ):
        body = {"grant_type": "password", "email": user["email"], "password": user["password"]}
        answer = api.post("/v1/auth/token", json=body, environment=environment)
        assert answer.status == 200, answer.json
        found[who] = answer.json["access_token"]
    return found


def test_nothing_of_what_it_made_is_open_to_strangers(api: Api, migrated: Contents, facts: dict[str, Any]) -> None:
    """Publishable keys came later: rules and functions from before them admit nobody who shows one."""
    owner = tokens_of(api, facts)["owner"]
    for environment in (facts["development"], facts["facts"]["environments"]["production"]):
        body = {"name": "page", "publishable": True, "environment_id": environment}
        key = api.post("/v1/keys", token=owner, json=body).json["secret"]
        tables = api.get("/v1/schema", token=owner, environment=environment).json["document"]["tables"]
        functions = api.get("/v1/functions", token=owner, environment=environment).json["data"]
        assert tables or functions
        for table in tables:
            assert api.get(f"/v1/rows/{table}", token=key).status == 404
            assert api.post(f"/v1/rows/{table}", token=key, json={}).status == 404
        for function in functions:
            assert api.post(f"/v1/functions/{function['name']}/invoke", token=key, json={}).status == 404


def test_what_it_made_can_be_changed_branched_and_deleted(api: Api, migrated: Contents, facts: dict[str, Any]) -> None:
    """Last in this file: it changes what the others look at."""
    tokens = tokens_of(api, facts)
    development, owner, key = facts["development"], tokens["owner"], tokens["old key"]

    def done(answer: Answer, status: int = 200) -> Any:
        assert answer.status == status, answer.json
        return answer.json

    thing = done(api.get("/v1/rows/things?limit=1", token=key))["data"][0]
    changed = api.request("PATCH", f"/v1/rows/things/{thing['id']}", token=key, json={"size": "9.75"})
    assert done(changed)["size"] == "9.75"
    document = done(api.get("/v1/schema", token=owner, environment=development))["document"]
    document["tables"]["things"]["columns"]["note"] = {"type": "text", "null": True}
    applied = api.request("PUT", "/v1/schema", token=owner, environment=development, json={"document": document})
    assert done(applied)["version"] == 2
    assert done(api.get(f"/v1/rows/things/{thing['id']}", token=key)) | {"note": None} == done(changed) | {"note": None}
    webhook = f"/v1/webhooks/{facts['webhook']['id']}"
    assert done(api.post(f"{webhook}/rotate-secret", token=owner, environment=development, json={}))["secret"]
    project = facts["facts"]["project_id"]
    body = {"name": "after-upgrade", "data": "full"}
    branch = done(api.post(f"/v1/projects/{project}/environments", token=owner, json=body), 201)
    rows = done(api.get("/v1/rows/tasks?limit=100", token=owner, environment=branch["id"]))["data"]
    production = facts["facts"]["environments"]["production"]
    assert rows == done(api.get("/v1/rows/tasks?limit=100", token=owner, environment=production))["data"]
    done(api.delete(f"/v1/projects/{project}", token=owner), 204)
    assert api.get("/v1/rows/tasks", token=facts["facts"]["server_key"]).status == 401
    assert [each["name"] for each in done(api.get("/v1/projects", token=owner))["data"]] == ["Wörkshop 𝄞"]
