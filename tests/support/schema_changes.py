"""An environment whose schema changes, and a process that can be killed during a change."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.conf import settings as django_settings
from django.db import connections

from accounts import audit
from accounts.models import User
from platform_site.embedded.data_dir import region_variable
from platform_site.identity.callers import EnvironmentRef
from projects.directory.environments import environment_ref
from projects.models import Environment
from projects.provisioning import schemas as provisioning_schemas
from rows.migrate import service as schema_service
from tests.projects.conftest import REGIONS, environment_of, make_project, schemas_in
from tests.projects.conftest import make_account as make_account
from tests.support import catalog

REGION = catalog.REGION


def document(*columns: str, **rest: Any) -> dict[str, Any]:
    return {"tables": {"tasks": {"columns": {name: {"type": "text", "null": True} for name in columns}, **rest}}}


@pytest.fixture
def environment(make_account: Any) -> Iterator[EnvironmentRef]:
    """A project's production environment with a table of three rows."""
    owner: User = make_account("alice")
    found = environment_ref(environment_of(make_project(owner)).pk)
    assert found is not None
    schema_service.change(found, document("title"), actor=audit.SYSTEM)
    execute(found, "INSERT INTO tasks (id, title) SELECT 't' || n, 'Task ' || n FROM generate_series(1, 3) n")
    yield found
    for environment_id in schemas_in(REGION):
        provisioning_schemas.drop_schema(environment_id, REGION)


def execute(environment: EnvironmentRef, statement: str) -> list[tuple[Any, ...]]:
    return catalog.run(environment.environment_id, statement)


def raw_connection(environment: EnvironmentRef) -> psycopg.Connection[Any]:
    """A separate connection, whose unqualified names are the environment's tables."""
    facts = connections[REGION].get_connection_params()
    known = {key: facts[key] for key in ("dbname", "user", "password", "host", "port") if facts.get(key)}
    return psycopg.connect(**known, options=f'-c search_path="{environment.environment_id}"')


def status(environment: EnvironmentRef) -> str:
    return Environment.objects.get(pk=environment.environment_id).status


@pytest.fixture(scope="module")
def mortal(django_db_setup: None) -> Iterator[Callable[..., dict[str, int]]]:
    variables = {"default": "DATABASE_URL"} | {region: region_variable(region) for region in REGIONS}
    databases = {
        variable: django_settings.LAYOUT.postgres_url(str(connections[alias].settings_dict["NAME"]))
        for alias, variable in variables.items()
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.schema_crash_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | databases | {"DJANGO_SETTINGS_MODULE": "platform_site.settings"},
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def change(**order: Any) -> dict[str, int]:
        process.stdin.write(json.dumps(order) + "\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        answer: dict[str, int] = json.loads(process.stdout.readline())  # type: ignore[union-attr]
        return answer

    yield change
    process.stdin.close()
    process.wait(10)


@pytest.fixture
def everything_is_large(settings: Any) -> None:
    settings.SCHEMA_LARGE_TABLE_ROWS = 0


def index_names(environment: EnvironmentRef) -> dict[str, bool]:
    return {row[1]: row[3] for row in catalog.catalog(environment.environment_id)["indexes"]}
