"""The command as developers run it: a process of its own, against the whole service."""

from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def cli(signed_out: Cli, app: App) -> Iterator[Cli]:
    """Signed in as the owner, in a folder that is linked to production of `app`."""
    signed_out.login(app.served.facts["account"])
    signed_out.run("link", app.project_id, "--environment", "production")
    yield signed_out
    signed_out.run("logout")
