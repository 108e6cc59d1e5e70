"""The quick start and the README's walk do what they say, when pasted into a shell."""

import json
import socket
from pathlib import Path

import pytest

from tests.support.doc_examples import Step, execute, indented, is_like, steps
from tests.support.service import ROOT, Up


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_every_answer_of_the_quick_start_is_the_one_shown(served: Up, tmp_path: Path) -> None:
    found = steps("tutorials/quick-start.md")
    assert sum(step.answer is not None for step in found) >= 8, "the page has lost its answers"
    printed = execute(served, tmp_path, found, replaced={"9000": free_port()})
    for step, text in zip(found, printed, strict=True):
        if step.answer is not None:
            real = json.loads(text.splitlines()[-1])
            assert is_like(step.answer, real), (step.commands, step.answer, real)


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
