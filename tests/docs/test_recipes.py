"""The recipes work as described, when pasted into a shell, against a service with its own data directory."""

import json
import re
from pathlib import Path

from tests.support.doc_examples import Step, execute, indented, is_like, steps
from tests.support.service import ROOT, Up


def test_every_answer_of_the_recipes_is_the_one_shown(served: Up, tmp_path: Path) -> None:
    found = [*steps("README.md"), *steps("how-to/recipes.md")]
    assert sum(step.answer is not None for step in found) >= 7, "the page has lost its answers"
    printed = execute(served, tmp_path, found)
    for step, text in zip(found, printed, strict=True):
        if step.answer is not None:
            real = json.loads(text.splitlines()[-1])
            assert is_like(step.answer, real), (step.commands, step.answer, real)
    said = "\n".join(printed)
    assert '{"on":["auth.user.created"],"on_stopped":null}' in said
    assert '[{"title":"Q1","team":"red"}]' in said, "a member of the team sees its report"
    assert 'taken\ntaken\n{"code":"function_failed"}\n' in said, (
        "Stripe's event is accepted, twice as one, and a forged one is not"
    )
    assert re.search(r'{"status":"failed","output":null}\n{"status":"succeeded"', said), (
        "a member without a team to lead adds no one"
    )


def test_the_facts_of_another_data_dir_are_found(served: Up, tmp_path: Path) -> None:
    """`DATA_DIR` names it, for the commands of the pages as for `manage.py`."""
    moved = Step(f"rm .data; export DATA_DIR={served.data_dir}")
    walk = Step(indented(ROOT / "README.md", "## A first walk").split("# create a project")[0] + "\necho $BASE $TOKEN")
    _, readme, guides = execute(served, tmp_path, [moved, walk, *steps("README.md")[:1]])
    assert readme.startswith(served.base_url)
    assert guides == ""
