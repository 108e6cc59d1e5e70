"""Fixtures for tests of crashes: `run(do="create", failpoint="…")` lets a real process do one thing and perhaps die of it
(`tests.support.project_crash_process`)."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import connection, connections

from platform_site.embedded.data_dir import region_variable

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def mortal_environment(django_db_setup: None) -> dict[str, str]:
    """The variables with which another process works in the databases of these tests."""
    layout = django_settings.LAYOUT
    variables = {"default": "DATABASE_URL"} | {each: region_variable(each) for each in django_settings.REGION_DATABASES}
    databases = {
        variable: layout.postgres_url(str(connections[alias].settings_dict["NAME"]))
        for alias, variable in variables.items()
    }
    return os.environ | databases | {"DJANGO_SETTINGS_MODULE": "platform_site.settings"}


@pytest.fixture(scope="module")
def mortal_process(mortal_environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.project_crash_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=mortal_environment,
    )
    yield process
    assert process.stdin is not None
    process.stdin.close()
    process.wait(60)


@pytest.fixture
def run(mortal_process: "subprocess.Popen[str]") -> Run:
    """Let a child do one thing and perhaps die of it; returns when PostgreSQL has noticed."""

    def order(**what: Any) -> dict[str, Any]:
        assert mortal_process.stdin is not None
        assert mortal_process.stdout is not None
        before = _backends_of_others()  # threads of earlier tests may keep a connection
        mortal_process.stdin.write(json.dumps(what) + "\n")
        mortal_process.stdin.flush()
        answer: dict[str, Any] = json.loads(mortal_process.stdout.readline())
        assert answer["signal"] in (0, 9), answer
        deadline = time.monotonic() + 30
        while _backends_of_others() - before:
            assert time.monotonic() < deadline, "PostgreSQL still serves the dead"
            time.sleep(0.005)
        return answer

    return order


def _backends_of_others() -> set[int]:
    ours = []
    for alias in ("default", *django_settings.REGION_DATABASES):
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            ours.append(cursor.fetchone()[0])
    names = [connections[alias].settings_dict["NAME"] for alias in ("default", *django_settings.REGION_DATABASES)]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = ANY(%s) AND pid <> ALL(%s)"
            " AND application_name = 'backend-platform'",
            [names, ours],
        )
        return {pid for (pid,) in cursor.fetchall()}
