"""Credentials in a keyring: one that stores in a file, so that the test needs no desktop."""

import json

import pytest

from tests.support.developer_cli import Cli
from tests.support.service import Up

pytestmark = pytest.mark.served


@pytest.fixture
def keyring_cli(signed_out: Cli) -> Cli:
    pytest.importorskip("keyring")
    pytest.importorskip("keyrings.alt")
    signed_out.environment["PYTHON_KEYRING_BACKEND"] = "keyrings.alt.file.PlaintextKeyring"
    signed_out.environment["XDG_DATA_HOME"] = str(signed_out.folder / "data")
    return signed_out


def test_tokens_are_in_the_keyring_and_not_in_the_file(keyring_cli: Cli, served: Up) -> None:
    keyring_cli.login(served.facts["account"])
    entry = json.loads(keyring_cli.credentials.read_text())[served.base_url]
    assert entry == {"name": served.facts["account"]["email"], "keyring": True}
    assert keyring_cli.credentials.stat().st_mode & 0o077 == 0
    keyring_cli.run("link", served.facts["project_id"], "--environment", "production")
    keyring_cli.json("keys", "list")
    error = keyring_cli.error("keys", "list", code=4, XDG_DATA_HOME=str(keyring_cli.folder / "nothing"))
    assert error["code"] == "keyring_unavailable"
    assert "install the package keyring" in error["hint"]
    assert keyring_cli.json("logout")["session_ended"]
    assert json.loads(keyring_cli.credentials.read_text()) == {}
    stored = [path.read_text() for path in (keyring_cli.folder / "data").rglob("*") if path.is_file()]
    assert stored
    assert served.base_url.split(":")[-1] not in "".join(stored)


@pytest.mark.parametrize("backend", ["keyring.backends.fail.Keyring", "keyring.backends.null.Keyring"])
def test_without_a_keyring_they_are_in_the_file(keyring_cli: Cli, served: Up, backend: str) -> None:
    keyring_cli.login(served.facts["account"])
    keyring_cli.environment["PYTHON_KEYRING_BACKEND"] = backend
    keyring_cli.login(served.facts["account"])
    entry = json.loads(keyring_cli.credentials.read_text())[served.base_url]
    assert set(entry) == {"token", "refresh_token", "name"}
    keyring_cli.run("link", served.facts["project_id"], "--environment", "production")
    keyring_cli.json("keys", "list")
    keyring_cli.run("logout")
