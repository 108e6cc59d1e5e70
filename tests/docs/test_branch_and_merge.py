"""The way from a branch to production and back does what its page says, when pasted into a shell."""

import json
from pathlib import Path

from tests.support.doc_examples import execute, is_like, steps
from tests.support.service import Up


def test_every_answer_from_a_branch_and_back_is_the_one_shown(served: Up, tmp_path: Path) -> None:
    found = [*steps("README.md"), *steps("how-to/branch-and-merge.md")]
    assert sum(step.answer is not None for step in found) >= 5, "the page has lost its answers"
    for step, text in zip(found, execute(served, tmp_path, found), strict=True):
        if step.answer is not None:
            real = json.loads(text.splitlines()[-1])
            assert is_like(step.answer, real), (step.commands, step.answer, real)
