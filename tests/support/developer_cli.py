"""`platform` as developers run it: a process of its own (see `forked_cli`), with credentials of its own."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.forked_cli import Command
from tests.support.service import ROOT

_OURS = ("PLATFORM_URL", "PLATFORM_TOKEN", "NO_COLOR", "FORCE_COLOR")


class Cli:
    """Runs commands in a folder, with credentials of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.config = folder / ".config"
        inherited = {name: value for name, value in os.environ.items() if name not in _OURS}
        self.environment = {
            **inherited,
            "PLATFORM_CONFIG_DIR": str(self.config),
            "PYTHONPATH": str(ROOT),
            "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        }

    @property
    def credentials(self) -> Path:
        return self.config / "credentials.json"

    def process(self, *arguments: str, **environment: str) -> Command:
        return Command(arguments, self.folder, {**self.environment, **environment})

    def run(
        self, *arguments: str, stdin: str = "", code: int = 0, **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        """Fails unless the command exits with `code`. No command prints a traceback or, in a pipe, a colour."""
        process = self.process(*arguments, **environment)
        out, err = process.communicate(stdin, timeout=60)
        assert process.returncode == code, (arguments, process.returncode, out, err)
        assert "Traceback" not in err
        assert "\x1b" not in out + err
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def json(self, *arguments: str, stdin: str = "", **environment: str) -> Any:
        return json.loads(self.run(*arguments, "--json", stdin=stdin, **environment).stdout)

    def error(self, *arguments: str, code: int, stdin: str = "", **environment: str) -> dict[str, Any]:
        """The error with `--json`; nothing is on standard output."""
        done = self.run(*arguments, "--json", stdin=stdin, code=code, **environment)
        assert done.stdout == ""
        error: dict[str, Any] = json.loads(done.stderr)["error"]
        return error

    def login(self, account: dict[str, str]) -> None:
        self.run("login", "--url", self.url, "--email", account["email"], stdin=account["password"] + "\n")
