"""The README's walk does what it says, when pasted into a shell, and responses are compared with those of pages."""

import json
from pathlib import Path

import pytest

from tests.support.doc_examples import Step, execute, indented, is_like
from tests.support.service import ROOT, Up


def test_the_walk_of_the_readme_goes_through(served: Up, tmp_path: Path) -> None:
    [printed] = execute(served, tmp_path, [Step(indented(ROOT / "README.md", "## A first walk"))])
    environments, rest = printed.split("HTTP/1.1 204", 1)
    assert [each["name"] for each in json.loads(environments)["data"]] == ["development", "production"]
    tasks, run = (json.loads(line) for line in rest.replace("}{", "}\n{").splitlines() if line.startswith("{"))
    assert {task["done"] for task in tasks["data"]} == {False}
    assert (run["status"], len(run["output"])) == ("succeeded", len(tasks["data"]))


@pytest.mark.parametrize(
    ("shown", "real", "same"),
    [
        ({"id": "env_…"}, {"id": "env_1"}, True),
        ({"id": "env_…"}, {"id": "prj_1"}, False),
        ({"id": "…"}, {"id": 3}, True),
        ({"n": 1}, {"n": 2}, False),
        ({"n": 1}, {"n": True}, False),
        ({"n": 1}, {"n": 1, "more": 2}, False),
        (["a"], ["a", "b"], False),
        ("a…c", "a\nc", True),
    ],
)
def test_the_comparison_can_fail(shown: object, real: object, same: bool) -> None:
    assert is_like(shown, real) is same
