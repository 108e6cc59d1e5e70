"""Code examples of the documentation: finds them, runs them (shell, JavaScript, Python) and compares their output."""

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

from functions.runtime.launch import deno
from tests.support.service import ROOT, Up

_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_END = "\x1e"
_LOCAL = "http://127.0.0.1:8000"


@dataclass(frozen=True)
class Step:
    """Shell commands, and the JSON that the page shows as the output of their last line, if any."""

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


def snippets(page: str) -> list[tuple[str, str]]:
    """Language and source of each JavaScript or Python block of a page that calls the demo."""
    return [(language, text) for language, text in fenced(page) if language in ("js", "python") and _LOCAL in text]


def run_snippet(up: Up, language: str, source: str) -> str:
    """The output of a snippet, run by Deno or Python with the URL and credentials of `up` instead of the page's."""
    user = up.facts["app_users"][0]
    for shown, real in (
        (_LOCAL, up.base_url),
        ("sk_…", up.facts["server_key"]),
        ("env_…", up.facts["environments"]["production"]),
        ("ada@example.com", user["email"]),
        ('password: "…"', f"password: {json.dumps(user['password'])}"),
        ('password="…"', f"password={json.dumps(user['password'])}"),
    ):
        source = source.replace(shown, real)
    assert "…" not in source
    allowed = up.base_url.removeprefix("http://")
    command = (
        [sys.executable, "-"] if language == "python" else [deno(), "run", f"--allow-net={allowed}", "--ext=js", "-"]
    )
    done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (source, done.stderr)
    return done.stdout


def execute(up: Up, directory: Path, found: list[Step], *, replaced: dict[str, str] | None = None) -> list[str]:
    """The output of each step, run one after the other in one shell that stops at the first failure.

    `directory` acts as the checkout of the pages: `.data` is that of the service, `.venv` that of this interpreter.
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
    """Whether `real` matches what the page shows; `…` matches any text in a string, or any value on its own."""
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
