"""The way from development to production does what its page says, when pasted into a shell."""

import json
import re
from pathlib import Path

from tests.support.doc_examples import Step, execute, fenced, is_like, steps
from tests.support.service import ROOT, Up

LINKED_FOLDER = f"""
export PLATFORM_URL=$BASE PLATFORM_CONFIG_DIR=$PWD/.config PYTHONPATH="{ROOT}"
export PYTHON_KEYRING_BACKEND=keyring.backends.fail.Keyring
platform() {{ .venv/bin/python -m platform_site.developer_cli "$@"; }}
fact .account.password | platform login --email "$(fact .account.email)"
platform init Files
echo '{{"tables": {{"items": {{"columns": {{"name": {{"type": "text"}}}}}}}}}}' > backend/schema.json
"""


def test_every_answer_on_the_way_to_production_is_the_one_shown(served: Up, tmp_path: Path) -> None:
    readme, page = steps("README.md"), steps("how-to/shipping.md")
    [job] = [re.findall("run: (.*)", text) for language, text in fenced("how-to/shipping.md") if language == "yaml"]
    ci = Step(f"PLATFORM_TOKEN=$(platform keys create job -e production --preset ci) {job[0]}")
    tidied = Step(
        'curl -s -H "Authorization: Bearer $TOKEN" -X DELETE $BASE/v1/projects/$(jq -r .project platform.json)'
    )
    found = [*readme, Step(LINKED_FOLDER), page[0], ci, tidied, *page[1:]]
    assert sum(step.answer is not None for step in found) >= 10, "the page has lost its answers"
    printed = execute(served, tmp_path, found)
    pushed = printed[len(readme) + 1]
    assert "create table items" in pushed
    assert pushed.splitlines()[-1].startswith("sk_")
    for step, text in zip(found, printed, strict=True):
        if step.answer is not None:
            real = json.loads(text.splitlines()[-1])
            assert is_like(step.answer, real), (step.commands, step.answer, real)
