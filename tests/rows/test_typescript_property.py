"""The types of random documents accept the filters and orders that the service accepts, and refuse hidden names."""

import json
import os
import subprocess
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from functions.runtime.launch import deno
from platform_site.http.errors import ValidationFailed
from rows.codegen.role_tables import RoleTables, tables_for
from rows.codegen.typescript import types_module
from rows.query.params import order_key
from rows.rules.grammar import read_filter
from rows.rules.name_resolver import InvalidCondition
from rows.rules.rules import Ruleset
from rows.schema.parser import parse
from tests.support import random_documents
from tests.support.random_documents import Conditions

pytestmark = pytest.mark.exhaustive

UNKNOWN = {"unknown", "unknown_operator", "to_many"}
"""Codes of what a type can know. Values of the right type may still be refused: too long, out of range, …"""


def refusal(where: Any, table: str, rules: Ruleset, role: str) -> str | None:
    try:
        read_filter(where, table, rules.resolver(role))
    except InvalidCondition as error:
        return error.code
    return None


def order_refusal(text: str, table: str, rules: Ruleset, role: str) -> str | None:
    try:
        order_key(text, table, rules.resolver(role))
    except ValidationFailed as error:
        return next(iter(error.fields)).code
    return None


def write_program(data: st.DataObject, directory: Path) -> None:
    """Types of a random document, and a program that the compiler accepts if they agree with the service."""
    document = data.draw(random_documents.documents(), "document")
    role = data.draw(st.sampled_from(["user", "member", "anonymous"]), "role")
    rules = Ruleset(parse(document))
    tables = tables_for(rules, role)
    lines = ['import type { Filter, OrderKey } from "./types.ts";', "export {};"]

    def put(type_: str, value: Any, code: str | None) -> None:
        if code is not None and code not in UNKNOWN:
            return
        if code is not None:
            lines.append(f"// @ts-expect-error {code}")
        lines.append(f"export const x{len(lines)}: {type_} = {json.dumps(value)};")

    for table in tables:
        for where in data.draw(
            st.lists(Conditions(document, random_documents.ids_of(table)).of(table), max_size=20), "filters"
        ):
            put(f'Filter<"{table}">', where, refusal(where, table, rules, role))
        for order in data.draw(st.lists(random_documents.orders(document, table), max_size=10), "orders"):
            for name, descending, first in order:
                text = f"{name}.{'desc' if descending else 'asc'}.{'nullsfirst' if first else 'nullslast'}"
                put(f'OrderKey<"{table}">', text, order_refusal(text, table, rules, role))
    directory.mkdir()
    (directory / "types.ts").write_text(types_module(RoleTables("env_1", 1, role, tables)))
    (directory / "program.ts").write_text("\n".join(lines))


@pytest.mark.timeout(600)
def test_types_agree_with_the_service(tmp_path: Path) -> None:
    numbers = count()

    @settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def write(data: st.DataObject) -> None:
        write_program(data, tmp_path / str(next(numbers)))

    write()
    programs = sorted(map(str, tmp_path.glob("*/program.ts")))
    assert len(programs) == 8
    environ = {"PATH": os.environ["PATH"], "DENO_DIR": str(tmp_path / "deno"), "NO_COLOR": "1"}
    command = [deno(), "check", "--no-config", *programs]  # its start takes most of the time
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
