"""`manage.py help`: what a newcomer is shown of the commands."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

pytestmark = pytest.mark.exhaustive

ROOT = Path(__file__).resolve().parents[2]


def manage(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "100"} | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("words", [("help",), ("--help",), ()])
def test_each_of_our_commands_is_listed_with_what_it_is_for(words: tuple[str, ...]) -> None:
    done = manage(*words)
    assert done.returncode == 0, done.stderr
    ours, djangos = done.stdout.split("Django's own")
    listed = {
        line.split()[0]: line.split()[1:] for line in ours.splitlines() if line.startswith("  ") and line[2] != " "
    }
    made = {path.stem for path in ROOT.glob("*/**/management/commands/[a-z]*.py") if ".venv" not in path.parts}
    assert listed.keys() == made
    assert all(listed.values()), "each says something"
    assert listed["up"][:2] == ["Start", "everything"]
    assert "makemigrations" in djangos
    assert "migrate" not in djangos.replace("makemigrations", "").split(", "), "that one is ours"
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_each_argument_of_our_commands_says_what_it_is() -> None:
    silent = []
    for name in {path.stem for path in ROOT.glob("*/**/management/commands/[a-z]*.py") if ".venv" not in path.parts}:
        parsers = [load_command_class(get_commands()[name], name).create_parser("manage.py", name)]
        for parser in parsers:
            for action in parser._actions:
                if isinstance(action, argparse._SubParsersAction):
                    parsers += action.choices.values()
                elif action.help is None:
                    silent.append(f"{name} {action.dest}")
    assert silent == []


def test_the_names_alone_are_a_line_each() -> None:
    names = manage("help", "--commands").stdout.splitlines()
    assert {"up", "deploy_function", "check"} <= set(names)


def test_who_has_a_setting_wrong_still_gets_a_list() -> None:
    done = manage("help", LOG_FORMAT="loud")
    assert done.returncode == 0, done.stderr
    assert "check" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
