"""A client that a public generator makes from the served description drives the service (docs/how-to/clients.md)."""

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.doc_examples import fenced
from tests.support.service import Up

MODULE = "platform_client"


@pytest.fixture(scope="module")
def generated(served: Up, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the package `platform_client`, on the path of this process while the module's tests run."""
    directory = tmp_path_factory.mktemp("client")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("openapi-python-client")), "generate", "--meta", "none"]
        + ["--url", f"{served.base_url}/v1/openapi.json", "--output-path", str(directory / MODULE)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "Unable" not in done.stdout, done.stdout
    sys.path.insert(0, str(directory))
    yield directory
    sys.path.remove(str(directory))
    for name in [name for name in sys.modules if name.split(".")[0] == MODULE]:
        del sys.modules[name]


class Generated:
    """The package's operations and models by name."""

    def __init__(self) -> None:
        self.package: Any = importlib.import_module(MODULE)
        self.models: Any = importlib.import_module(f"{MODULE}.models")

    def operation(self, tag: str, name: str) -> ModuleType:
        return importlib.import_module(f"{MODULE}.api.{tag}.{name}")

    def ask(self, tag: str, name: str, *arguments: str, **named: Any) -> Any:
        """The parsed answer; the status is checked to be a success."""
        answer = self.operation(tag, name).sync_detailed(*arguments, **named)
        assert 200 <= answer.status_code < 300, answer.content
        return answer.parsed


def test_a_generated_python_client_drives_the_twelve_endpoints(served: Up, generated: Path) -> None:
    ours, facts = Generated(), served.facts
    models = ours.models
    stranger = ours.package.Client(base_url=served.base_url)
    grant = models.TokenInput.from_dict(
        {"grant_type": "password"} | {k: facts["account"][k] for k in ("email", "password")}
    )
    tokens = ours.ask("auth", "create_token", client=stranger, body=grant)
    assert tokens.user.id == facts["account"]["id"]

    owner = ours.package.AuthenticatedClient(base_url=served.base_url, token=tokens.access_token)
    made = ours.ask(
        "projects",
        "create_project",
        client=owner,
        body=models.NewProject.from_dict({"name": "Generated", "region": "us-east-1"}),
    )
    listed = ours.ask("projects", "list_projects", client=owner)
    assert made.id in {project.id for project in listed.data}
    environments = ours.ask("projects", "list_environments", made.id, client=owner)
    assert {environment.name for environment in environments.data} == {"development", "production"}
    assert ours.ask("projects", "delete_project", made.id, client=owner) is None

    key = ours.package.AuthenticatedClient(base_url=served.base_url, token=facts["server_key"])
    page = ours.ask("rows", "list_rows", "tasks", client=key, where=json.dumps({"done": False}), limit=1, with_="list")
    [task] = page.data
    assert task["list"]["name"]
    one = ours.ask("rows", "get_row", "tasks", task.id, client=key)
    assert one["title"] == task["title"]
    for title in ("Renamed", task["title"]):
        changed = ours.ask(
            "rows", "update_row", "tasks", task.id, client=key, body=models.PatchedCells.from_dict({"title": title})
        )
        assert changed["title"] == title

    wanted = models.NewWebhook.from_dict(
        {"url": "https://example.com/hook", "events": ["nothing.insert"], "enabled": False}
    )
    hook = ours.ask("webhooks", "create_webhook", client=key, body=wanted)
    assert hook.id in {each.id for each in ours.ask("webhooks", "list_webhooks", client=key).data}
    assert ours.ask("webhooks", "delete_webhook", hook.id, client=key) is None

    call = models.Invocation.from_dict({"input": {"a": 2, "b": 3}})
    run = ours.ask("functions", "invoke_function", "sum", client=key, body=call)
    assert (run.status, run.output) == ("succeeded", {"sum": 5})
    assert run.run_id in {each.id for each in ours.ask("functions", "list_runs", "sum", client=key).data}

    refused = ours.operation("rows", "get_row").sync("tasks", "tsk_nobody", client=key)
    assert (type(refused).__name__, refused.error.code) == ("Error", "not_found")


def test_the_python_of_the_page_runs(served: Up, generated: Path, tmp_path: Path) -> None:
    [script] = [text for language, text in fenced("how-to/clients.md") if language == "python"]
    (tmp_path / ".data").symlink_to(served.data_dir)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(generated)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"(tsk_\w+ .+\n){2}.+ True\nsucceeded .*5.*\n", done.stdout), done.stdout
