"""The commands and answers that stand in a page of documentation, and a shell that executes them."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.serving import ROOT, Up

_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_END = "\x1e"


@dataclass(frozen=True)
class Step:
    """Commands, and the JSON that the page shows as the answer of their last line, if it shows one."""

    commands: str
    answer: Any = None


def fenced(page: str) -> list[tuple[str, str]]:
    """Language and text of each fenced block of `docs/<page>`, in order."""
    return [(language, text) for language, text in _FENCED.findall((ROOT / "docs" / page).read_text())]


def steps(page: str) -> list[Step]:
    """The `sh` blocks of a page, each with the `json` block right behind it."""
    found: list[Step] = []
    for language, text in fenced(page):
        if language == "sh":
            found.append(Step(text))
        elif language == "json" and found and found[-1].answer is None:
            found[-1] = Step(found[-1].commands, json.loads(text))
    return found


def indented(page: Path, heading: str) -> str:
    """The code under a heading of a page that indents it."""
    section = page.read_text().split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]
    return "\n".join(line[4:] for line in section.splitlines() if line.startswith("    ") or not line.strip())


def execute(up: Up, directory: Path, found: list[Step], *, replaced: dict[str, str] | None = None) -> list[str]:
    """What each step printed, executed one after the other in one shell that ends at the first failure.

    `directory` becomes what the pages call the checkout: `.data` is the service's, `.venv` this interpreter's.
    """
    for tool in ("bash", "curl", "jq"):
        if shutil.which(tool) is None:
            pytest.skip(f"this machine has no {tool}")
    (directory / ".data").symlink_to(up.data_dir)
    (directory / ".venv").symlink_to(sys.prefix)
    script = "".join(f"{step.commands}\nprintf '\\n{_END}'\n" for step in found)
    for before, after in (replaced or {}).items():
        assert before in script
        script = script.replace(before, after)
    shell = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        start_new_session=True,
    )
    try:
        printed, complaints = shell.communicate(timeout=90)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)  # what a step left in the background
    parts = printed.split(_END)
    assert shell.returncode == 0, (found[len(parts) - 1].commands, parts[-1], complaints)
    return [part.strip() for part in parts[:-1]]


def is_like(shown: Any, real: Any) -> bool:
    """Whether `real` is what the page shows; `…` in a string stands for any text, or for any value if it is all."""
    match shown:
        case "…":
            return True
        case dict():
            return (
                isinstance(real, dict)
                and shown.keys() == real.keys()
                and all(is_like(shown[k], real[k]) for k in shown)
            )
        case list():
            return isinstance(real, list) and len(shown) == len(real) and all(map(is_like, shown, real))
        case str():
            pattern = ".*".join(map(re.escape, shown.split("…")))
            return isinstance(real, str) and re.fullmatch(pattern, real, re.DOTALL) is not None
    return type(shown) is type(real) and bool(shown == real)
