"""`/client.js`, `/client.d.ts` and their versioned URLs: what is built, how it is served, what its types refuse."""

import gzip
import json
import os
import re
import subprocess
import tomllib
from itertools import product
from pathlib import Path

import pytest
from django.core.management import call_command

from functions.runtime.launch import deno
from platform_site.http.site.client_script import DIST
from rows.codegen.role_tables import RoleTables, tables_for
from rows.codegen.typescript import types_module
from rows.rules.rules import Ruleset
from rows.schema.parser import parse
from tests.support.client import Answer, Api
from tests.support.service import ROOT

pytestmark = pytest.mark.exhaustive

HERE = Path(__file__).parent
DOCUMENT = json.loads((HERE.parent / "rows" / "types" / "document.json").read_text())


def get(api: Api, path: str, **headers: str) -> Answer:
    return api.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})


def test_what_is_served_is_what_the_sources_build() -> None:
    call_command("build_client", check=True)


def test_it_is_one_module_of_at_most_12_kb_without_imports() -> None:
    text = (DIST / "client.js").read_text()
    assert len(gzip.compress(text.encode())) <= 12 * 1024
    assert not re.search(r"^\s*import\b|\bimport\(|\brequire\(", text, re.MULTILINE)
    exported = re.findall(r"export (?:const|class|function) (\w+)|export \{ (\w+) \}", text)
    assert {first or second for first, second in exported} == {
        "VERSION",
        "PlatformClient",
        "PlatformError",
        "createClient",
    }


@pytest.mark.parametrize(
    ("name", "media_type"),
    [("client.js", "text/javascript; charset=utf-8"), ("client.d.ts", "application/typescript")],
)
def test_a_file_has_a_strong_tag_and_may_be_loaded_by_every_page(api: Api, name: str, media_type: str) -> None:
    found = get(api, f"/{name}", Origin="https://elsewhere.example")
    assert (found.status, found.headers["Content-Type"]) == (200, media_type)
    assert found.body == (DIST / name).read_bytes()
    tag = found.headers["ETag"]
    assert re.fullmatch(r'"[0-9a-f]{32}"', tag)
    assert found.headers["Cache-Control"] == "public, no-cache"
    assert found.headers["Access-Control-Allow-Origin"] == "*"
    again = get(api, f"/{name}", If_None_Match=tag)
    assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag)
    assert again.headers["Access-Control-Allow-Origin"] == "*"
    assert get(api, f"/{name}", If_None_Match='"0"').status == 200
    assert api.request("POST", f"/{name}").status == 405


def test_a_version_never_changes_and_others_are_not_there(api: Api) -> None:
    version = re.search(r'VERSION = "(.+?)"', (DIST / "client.js").read_text())
    assert version
    assert version[1] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for ending in ("js", "d.ts"):
        found = get(api, f"/client@{version[1]}.{ending}")
        assert found.body == get(api, f"/client.{ending}").body
        assert found.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    for path in ("/client@9.9.9.js", "/client@.js", "/client@0.1.0.ts", "/client.ts", "/client.jsx", "/xclient.js"):
        assert get(api, path).status == 404, path


def check(directory: Path, *names: str) -> str:
    """What the compiler complains about."""
    environ = {"PATH": os.environ["PATH"], "DENO_DIR": str(directory / "deno"), "NO_COLOR": "1"}
    command = [deno(), "check", "--no-config", "--no-remote", *names]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, env=environ)
    return done.stderr if done.returncode else ""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The built files, and the generated types of the document for `user`."""
    rules = Ruleset(parse(DOCUMENT))
    (tmp_path / "types.ts").write_text(types_module(RoleTables("env_1", 1, "user", tables_for(rules, "user"))))
    for name in ("client.js", "client.d.ts"):
        (tmp_path / name).write_bytes((DIST / name).read_bytes())
    return tmp_path


def test_wrong_tables_columns_filters_and_relations_do_not_compile(directory: Path) -> None:
    (directory / "use.ts").write_text((HERE / "types.ts").read_text())
    assert check(directory, "use.ts") == ""


def test_a_misspelled_name_is_in_the_compilers_message(directory: Path) -> None:
    misspelled = {
        'client.rows("tsaks")': '"tsaks"',
        'client.rows("tasks").list({ where: { dnoe: false } })': "dnoe",
        'client.rows("tasks").list({ with: "lits" })': '"lits"',
    }
    declarations = ("client = createClient<Tables>", "client: PlatformClient<Tables> = createClient")
    expected = {}
    for number, ((call, named), declared) in enumerate(product(misspelled.items(), declarations)):
        program = f"""
            import {{ createClient, type PlatformClient }} from "./client.js";
            import type {{ Tables }} from "./types.ts";
            const {declared}({{ url: "http://x", key: "pk_1" }});
            {call};
        """
        (directory / f"use{number}.ts").write_text(program)
        expected[f"use{number}.ts"] = named
    for error in check(directory, *expected).split("[ERROR]")[1:]:
        [file] = re.findall(r"/(use\d\.ts):", error)
        assert expected.pop(file) in error
    assert expected == {}
