"""docs/tutorials/quick-start.md: each command is run, each file is written, and the application is used in a browser."""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sysconfig
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from functions.runtime.launch import deno
from tests.support.browser import browser as browser
from tests.support.browser import browser_errors as browser_errors
from tests.support.browser import in_a_browser
from tests.support.browser import window as window
from tests.support.printed_emails import link_to
from tests.support.service import ROOT, Up, wait_for

pytestmark = in_a_browser

PAGE = (ROOT / "docs/tutorials/quick-start.md").read_text()
COMMANDS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FILES = re.findall(r"`([\w./]+)`:\n\n```(?!sh)\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PASSWORD = "correct horse battery"


@dataclass
class Application:
    """What the commands of the page have made."""

    folder: Path
    origin: str
    environ: dict[str, str]

    def check(self, *scripts: str) -> "subprocess.CompletedProcess[str]":
        command = [deno(), "check", "--allow-import", *scripts]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, env=self.environ, timeout=90)


def checkout(folder: Path) -> Path:
    """What the installation reads, and a virtual environment whose dependencies are those of this one: no network."""
    package = folder / "platform_site" / "developer_cli"
    (package / "commands").mkdir(parents=True)
    for file in [*(ROOT / "platform_site/developer_cli").rglob("*.py"), ROOT / "pyproject.toml", ROOT / "README.md"]:
        shutil.copy(file, folder / file.relative_to(ROOT))
    venv.create(folder / ".venv", with_pip=False)
    packages = sysconfig.get_path("purelib", vars={"base": str(folder / ".venv")})
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = folder / ".venv/bin/pip"
    pip.write_text(f'#!/bin/sh\nexec "{folder}/.venv/bin/python" -m pip "$@"\n')
    pip.chmod(0o755)
    (folder / ".venv/bin/deno").symlink_to(deno())
    return folder


def script() -> str:
    """The page, but for the command that starts the service, as one shell script. The last command serves the page."""
    parts = re.split(r"^```(\w+)\n(.*?)^```\n", PAGE, flags=re.MULTILINE | re.DOTALL)
    lines: list[str] = []
    for before, language, text in zip(parts[::3], parts[1::3], parts[2::3], strict=False):
        if language == "sh":
            lines += [line for line in text.splitlines() if "manage.py up" not in line]
        else:
            name = re.findall(r"`([\w./]+)`:\n\n\Z", before)[0]
            lines.append(f"cat > {name} <<'END OF FILE'\n{text}END OF FILE")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def application(served: Up, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    pytest.importorskip("setuptools")
    root = tmp_path_factory.mktemp("quick-start")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    text = script().replace("http://127.0.0.1:8000", served.base_url).replace("5173", port)
    environ = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        "PLATFORM_URL": served.base_url, "PLATFORM_CONFIG_DIR": str(root / "config"), "NO_COLOR": "1",
        "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        "DENO_DIR": str(root / "deno"), "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "false",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }  # fmt: skip
    shell = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", text], cwd=checkout(root / "checkout"), env=environ, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write(served.facts["account"]["password"] + "\n")
    shell.stdin.close()
    made = Application(root / "notes", f"http://localhost:{port}", environ)
    try:
        wait_for(
            "the page is served, or a command failed", lambda: answers(made.origin) or shell.poll() is not None, 120
        )
        assert shell.poll() is None, shell.stdout.read()
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    link = json.loads((made.folder / "platform.json").read_text())
    token = json.loads((root / "config/credentials.json").read_text())[served.base_url]["token"]
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.delete(f"{served.base_url}/v1/projects/{link['project']}", headers=headers).status_code == 204


def answers(origin: str) -> bool:
    try:
        return httpx.get(f"{origin}/app.js").status_code == 200
    except httpx.TransportError:
        return False


def test_it_has_at_most_10_commands_and_40_lines_of_code() -> None:
    assert len([line for block in COMMANDS for line in block.splitlines()]) <= 10
    assert [name for name, _ in FILES] == ["backend/schema.json", "index.html", "app.js"]
    assert len([line for _, text in FILES for line in text.splitlines() if line.strip()]) <= 40


def test_the_application_is_typed(application: Application) -> None:
    source = (application.folder / "app.js").read_text()
    assert "note.body" in source
    (application.folder / "misspelled.js").write_text(source.replace("note.body", "note.bdoy"))
    done = application.check("app.js", "misspelled.js")
    assert "bdoy" in done.stderr
    assert "/app.js" not in done.stderr, done.stderr


def test_the_application_is_live(served: Up, application: Application, window: Callable[..., Page]) -> None:
    email = f"nia-{secrets.token_hex(4)}@example.com"
    first = window()

    def enter(button: str) -> None:
        first.locator("input[name=email]").fill(email)
        first.locator("input[name=password]").fill(PASSWORD)
        first.get_by_role("button", name=button).click()

    first.goto(application.origin)
    with first.expect_event("dialog", lambda dialog: dialog.message == "Check your email"):
        first.once("dialog", lambda dialog: dialog.accept())
        enter("Create account")
    first.goto(link_to(served, email, "confirm-sign-up"))
    first.get_by_label("Password").fill(PASSWORD)
    first.get_by_role("button", name="Confirm my account").click()
    expect(first.get_by_role("heading", name="Your account is ready")).to_be_visible()
    first.goto(application.origin)
    enter("Sign in")
    expect(first.locator("input[name=email]")).to_have_value("")  # the form is empty when it is done
    second = first.context.new_page()
    second.goto(application.origin)
    for note in ("First", "<b>Second</b>"):
        first.locator("input[name=body]").fill(note)
        first.get_by_role("button", name="Add").click()
        expect(second.locator("li").first).to_have_text(note)
    expect(first.locator("li")).to_have_text(["<b>Second</b>", "First"])
