"""The command as developers run it: a process of its own, against the whole service."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.developer_cli import Cli
from tests.support.live_changes import App
from tests.support.service import Up


@pytest.fixture(scope="module")
def app(served: Up) -> Iterator[App]:
    """A project for the tests of a module: its access tokens expire after 15 minutes, which a whole run exceeds."""
    app = App(served)
    yield app
    app.close()


@pytest.fixture
def signed_out(tmp_path: Path, served: Up) -> Cli:
    """Before a sign-in."""
    return Cli(tmp_path, served.base_url)


@dataclass
class Kept:
    """What the sign-in and the link of a module left on disk: each takes a process or two."""

    url: str
    credentials: str = "{}"
    link: str = ""

    def holds(self) -> bool:
        """Whether the session has not ended."""
        return self.url in json.loads(self.credentials) and self._ask("GET", "me").status_code == 200

    def end(self) -> None:
        if self.holds():
            self._ask("POST", "revoke", json={"scope": "current"})

    def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {json.loads(self.credentials)[self.url]['token']}"}
        return httpx.request(method, f"{self.url}/v1/auth/{path}", headers=headers, timeout=30, **more)


@pytest.fixture(scope="module")
def kept(served: Up) -> Iterator[Kept]:
    kept = Kept(served.base_url)
    yield kept
    kept.end()


@pytest.fixture
def cli(signed_out: Cli, app: App, kept: Kept) -> Iterator[Cli]:
    """Signed in as the owner, in a folder that is linked to production of `app`."""
    link = signed_out.folder / "platform.json"
    if kept.holds():
        signed_out.config.mkdir(mode=0o700)
        signed_out.credentials.touch(mode=0o600)
        signed_out.credentials.write_text(kept.credentials)
        link.write_text(kept.link)
    else:
        signed_out.login(app.served.facts["account"])
        signed_out.run("link", app.project_id, "--environment", "production")
        kept.link = link.read_text()
    yield signed_out
    kept.credentials = signed_out.credentials.read_text()  # its refresh token may be another
