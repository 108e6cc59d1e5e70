"""The client in Deno against the real service. `scenarios.ts` has what is tested."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from functions.runtime.launch import deno
from platform_site.http.site.client_script import DIST
from tests.support.doc_examples import fenced
from tests.support.service import Up

pytestmark = pytest.mark.served

SOURCE = Path(__file__).with_name("scenarios.ts")
SCENARIOS = re.findall(r"^  async (\w+)\(\) \{$", SOURCE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("client")
    for path in (SOURCE, DIST / "client.js", DIST / "client.d.ts"):
        shutil.copy(path, made)
    return made


@pytest.fixture(scope="module")
def facts(served: Up) -> Iterator[dict[str, Any]]:
    """Sign-up is open, and there is a publishable key."""
    environment = served.facts["environments"]["production"]
    account = served.facts["account"]
    grant = {"grant_type": "password", "email": account["email"], "password": account["password"]}
    with httpx.Client(base_url=f"{served.base_url}/v1", timeout=60) as client:
        token = client.post("/auth/token", json=grant).raise_for_status().json()["access_token"]
        client.headers.update({"Authorization": f"Bearer {token}", "X-Environment": environment})
        body = {"name": "client", "publishable": True, "environment_id": environment}
        known = [each["id"] for each in client.get("/rows/lists?limit=100").raise_for_status().json()["data"]]
        key = client.post("/keys", json=body).raise_for_status().json()["secret"]
        client.patch("/auth/settings", json={"sign_up": "open"}).raise_for_status()
    yield {
        "base_url": served.base_url,
        "publishable_key": key,
        "server_key": served.facts["server_key"],
        "environment": environment,
        "users": served.facts["app_users"],
    }
    headers = {"Authorization": f"Bearer {served.facts['server_key']}"}
    with httpx.Client(base_url=f"{served.base_url}/v1", headers=headers, timeout=60) as client:
        client.patch("/auth/settings", json={"sign_up": "off"}).raise_for_status()
        mine = json.dumps({"id": {"$nin": known}})
        client.delete("/rows/lists", params={"where": mine}).raise_for_status()


def run(directory: Path, served: Up, *arguments: str) -> str:
    """What the program prints."""
    environ = {"PATH": os.environ["PATH"], "DENO_DIR": str(directory / "deno"), "NO_COLOR": "1"}
    allowed = f"--allow-net={urlsplit(served.base_url).netloc},127.0.0.1:9"
    command = [deno(), "run", "--no-config", "--no-prompt", allowed, *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, env=environ, timeout=90)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_scenarios_compile(directory: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "DENO_DIR": str(directory / "deno"), "NO_COLOR": "1"}
    command = [deno(), "check", "--no-config", "scenarios.ts"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    assert len(SCENARIOS) > 20


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(directory: Path, served: Up, facts: dict[str, Any], name: str) -> None:
    run(directory, served, "--no-check", "scenarios.ts", name, json.dumps(facts))


def test_the_served_module_is_imported_with_its_types(directory: Path, served: Up) -> None:
    host = urlsplit(served.base_url).netloc
    program = f"""
        import {{ createClient, VERSION }} from "{served.base_url}/client.js";
        const client = createClient({{ url: "{served.base_url}", key: "pk_1" }});
        // @ts-expect-error the types came with it
        client.rows(1);
        if (VERSION.split(".").length !== 3) throw VERSION;
    """
    (directory / "imported.ts").write_text(program.replace("client.rows(1)", "(() => client.rows(1))"))
    run(directory, served, "--check", f"--allow-import={host}", "imported.ts")


@pytest.mark.parametrize("engine", ["deno", "node"])
def test_the_program_of_the_page_runs(directory: Path, served: Up, facts: dict[str, Any], engine: str) -> None:
    if engine == "node" and shutil.which("node") is None:
        pytest.skip("this machine has no node")
    [source] = [text for language, text in fenced("reference/javascript-client.md") if language == "js"]
    user = facts["users"][0]
    for shown, real in (
        ("http://127.0.0.1:8000", served.base_url),
        ("pk_…", facts["publishable_key"]),
        ("env_…", facts["environment"]),
        ("ada@example.com", user["email"]),
        ("…", user["password"]),
    ):
        assert shown in source
        source = source.replace(shown, real)
    if engine == "deno":
        (directory / "page.js").write_text(source)
        printed = run(directory, served, f"--allow-import={urlsplit(served.base_url).netloc}", "page.js")
    else:  # which imports nothing over HTTP
        shutil.copy(DIST / "client.js", directory / "client.mjs")
        (directory / "page.mjs").write_text(source.replace(f"{served.base_url}/client.js", "./client.mjs"))
        command = ["node", "page.mjs"]
        printed = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True, timeout=90).stdout
    assert "Water the plants Home\n" in printed


def test_node_ends_changes_after_a_garbage_collection(directory: Path, served: Up, facts: dict[str, Any]) -> None:
    if shutil.which("node") is None:
        pytest.skip("this machine has no node")
    shutil.copy(DIST / "client.js", directory / "client.mjs")
    options = json.dumps({"url": served.base_url, "key": facts["server_key"]})
    (directory / "collected.mjs").write_text(f"""
        import {{ createClient }} from "./client.mjs";
        const stop = new AbortController();
        const changes = createClient({options}).rows("tasks").changes({{}}, {{ signal: stop.signal }});
        console.log((await changes.next()).value.type);
        const ended = changes.next().then(() => "went on", (error) => error.name);
        for (let round = 0; round < 5; round++) await new Promise((resolve) => setTimeout(resolve, 50)).then(gc);
        stop.abort();
        console.log(await Promise.race([ended, new Promise((resolve) => setTimeout(resolve, 5000, "silence"))]));
        process.exit();
    """)
    command = ["node", "--expose-gc", "collected.mjs"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["reset", "AbortError"]
