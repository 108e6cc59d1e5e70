"""The shell, JavaScript and Python examples of the guides run against the demo, and print what the pages show."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.client import Api
from tests.support.doc_examples import execute, fenced, is_like, run_snippet, snippets, steps
from tests.support.service import ROOT, Up

SHELL = [
    "how-to/functions.md",
    "how-to/sign-in.md",
    "how-to/webhooks.md",
    "reference/filters.md",
    "reference/http.md",
    "reference/limits.md",
    "reference/projects.md",
    "reference/rows.md",
]
PRINTED = {
    "how-to/functions.md": r"succeeded \{.?sum.?: 3 ?\}",
    "how-to/sign-in.md": r".+@.+",
    "reference/filters.md": r"(?i)\w+ false",
    "reference/http.md": r"succeeded.*sum.?: 3",
    "reference/rows.md": r".*data.*",
}
ELSEWHERE = {
    "README.md",
    "tutorials/quick-start.md",
    "how-to/recipes.md",
    "how-to/shipping.md",
    "how-to/branch-and-merge.md",
}
"""Pages whose shell blocks another test runs."""


@pytest.fixture
def settings_restored(served: Up) -> Iterator[None]:
    """Undoes what the pages change of the demo: sign-up, plan, allowed origins, a branch."""
    yield
    api, facts = Api(served.base_url), served.facts
    api.patch("/v1/auth/settings", token=facts["server_key"], json={"sign_up": "off", "app_name": ""})
    grant = {"grant_type": "password", "email": facts["account"]["email"], "password": facts["account"]["password"]}
    token = api.post("/v1/auth/token", json=grant).json["access_token"]
    project = f"/v1/projects/{facts['project_id']}"
    api.patch(project, token=token, json={"plan": "free"})
    environments = f"{project}/environments"
    api.patch(f"{environments}/{facts['environments']['production']}", token=token, json={"allowed_origins": []})
    for environment in api.get(environments, token=token).json["data"]:
        if environment["name"] == "fix/login":
            api.delete(f"{environments}/{environment['id']}", token=token)


@pytest.mark.usefixtures("settings_restored")
@pytest.mark.parametrize("page", SHELL)
def test_shell_examples_print_what_the_page_shows(served: Up, tmp_path: Path, page: str) -> None:
    found = [*steps("README.md"), *steps(page)]
    for step, text in zip(found, execute(served, tmp_path, found), strict=True):
        if step.answer is not None:
            real = json.loads(text.splitlines()[-1])
            assert is_like(step.answer, real), (step.commands, step.answer, real)


@pytest.mark.parametrize("page", PRINTED)
def test_javascript_and_python_examples_run(served: Up, page: str) -> None:
    found = snippets(page)
    assert [language for language, _ in found] == ["js", "python"]
    for language, source in found:
        printed = run_snippet(served, language, source)
        assert re.search(PRINTED[page], printed.replace("\n", " ")), (language, printed)


def test_every_shell_example_is_run_by_a_test() -> None:
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    with_shell = {page for page in pages if any(language == "sh" for language, _ in fenced(page))}
    assert with_shell == {*SHELL, *ELSEWHERE}
