"""What is run by hand, benchmarks and the suite of faults, starts: no other test imports it without pytest's
settings."""

import os
import subprocess
import sys

import pytest

from tests.support.service import ROOT

TOOLS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for directory in ("tests/benchmarks", "tests/faults")
    for path in (ROOT / directory).glob("*.py")
    if 'if __name__ == "__main__":' in path.read_text()
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("tool", TOOLS)
def test_it_is_imported_by_a_bare_python(tool: str) -> None:
    command = [sys.executable, "-c", f"import {tool}"]
    ended = subprocess.run(command, cwd=ROOT, env={"PATH": os.defpath}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_there_are_some() -> None:
    assert {"tests.benchmarks.__main__", "tests.faults.__main__", "tests.faults.soak"} <= set(TOOLS)
