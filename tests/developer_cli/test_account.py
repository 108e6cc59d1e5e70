"""Signing in, credentials on disk, linking a folder, and errors that every command has."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from platform_site.developer_cli.commands import account
from platform_site.developer_cli.failures import Failure
from tests.support.developer_cli import Cli
from tests.support.live_changes import App
from tests.support.service import Up

pytestmark = pytest.mark.served


def test_credentials_are_stored_for_the_user_alone(signed_out: Cli, served: Up) -> None:
    account = served.facts["account"]
    done = signed_out.run("login", "--url", served.base_url, "--email", account["email"], stdin=account["password"])
    assert account["email"] in done.stdout
    assert account["password"] not in done.stdout + done.stderr + signed_out.credentials.read_text()
    assert stat.S_IMODE(signed_out.credentials.stat().st_mode) == 0o600
    assert list(json.loads(signed_out.credentials.read_text())) == [served.base_url]
    stored = json.loads(signed_out.credentials.read_text())[served.base_url]
    assert signed_out.json("logout")["session_ended"]
    assert json.loads(signed_out.credentials.read_text()) == {}
    with httpx.Client(headers={"Authorization": f"Bearer {stored['token']}"}) as client:
        assert client.get(f"{served.base_url}/v1/auth/me").status_code == 401


def test_credentials_that_others_can_read_are_refused(cli: Cli) -> None:
    cli.credentials.chmod(0o644)
    assert cli.error("keys", "list", code=4)["code"] == "credentials_readable"
    cli.credentials.chmod(0o600)


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"URL": []}', '{"URL": {"token": "x", "new": 1}}', '{"URL": {"keyring": 1}}']
)
def test_credentials_of_another_version_are_refused(signed_out: Cli, text: str) -> None:
    signed_out.config.mkdir(mode=0o700)
    signed_out.credentials.touch(mode=0o600)
    signed_out.credentials.write_text(text.replace("URL", signed_out.url))
    error = signed_out.error("status", code=4, PLATFORM_URL=signed_out.url)
    assert error["code"] in ("credentials_unreadable", "keyring_unavailable")


def test_status_names_what_commands_here_use(cli: Cli, app: App) -> None:
    linked = json.loads((cli.folder / "platform.json").read_text())
    email = app.served.facts["account"]["email"]
    name = app.ok("owner", "GET", f"/projects/{app.project_id}")["name"]
    assert cli.json("status") == {
        "url": cli.url, "account": email,
        "project": {"id": linked["project"], "name": name},
        "environment": {"id": linked["environment"], "name": "production"},
    }  # fmt: skip
    assert cli.run("status").stdout.splitlines() == [
        f"url: {cli.url}", f"account: {email}", f"project: {name} ({linked['project']})",
        f"environment: production ({linked['environment']})",
    ]  # fmt: skip
    key = cli.json("keys", "create", "reader", "--scope", "rows:read")["secret"]
    assert cli.json("status", PLATFORM_TOKEN=key, PLATFORM_URL=cli.url) | {"account": ""} == {
        "url": cli.url, "account": "",
        "project": {"id": linked["project"], "name": None},
        "environment": {"id": linked["environment"], "name": None},
    }  # fmt: skip
    (cli.folder / "platform.json").unlink()
    done = cli.run("status")
    assert done.stdout.splitlines() == [f"url: {cli.url}", f"account: {email}"]
    assert "platform link PROJECT" in done.stderr


def test_status_without_a_session(signed_out: Cli) -> None:
    assert signed_out.error("status", code=4)["code"] == "not_signed_in"


def test_a_wrong_password(signed_out: Cli, served: Up) -> None:
    email = served.facts["account"]["email"]
    error = signed_out.error("login", "--url", served.base_url, "--email", email, stdin="wrong\n", code=4)
    assert (error["code"], error["message"]) == ("invalid_grant", "The email or the password is wrong.")
    assert not signed_out.credentials.exists()
    assert signed_out.error("login", "--url", served.base_url, "--email", email, code=2)["code"] == "no_input"


def test_a_key_signs_in_and_a_wrong_one_does_not(signed_out: Cli, served: Up) -> None:
    key = served.facts["server_key"]
    assert signed_out.error("login", "--url", served.base_url, "--token", stdin=key[:-1] + "\n", code=4)
    assert signed_out.json("login", "--url", served.base_url, "--token", stdin=key)["name"] == "Demo"
    # A key has one environment, but a folder without a link is a mistake more often than not.
    assert signed_out.error("users", "list", code=2)["code"] == "not_linked"
    signed_out.run("link", "--environment", "production")
    assert {each["email"] for each in signed_out.json("users", "list")} == {"ada@example.com", "grace@example.com"}


def test_a_token_in_the_environment_needs_its_url(signed_out: Cli, served: Up) -> None:
    """A link in a cloned repository cannot send the token of a CI job elsewhere."""
    key = served.facts["server_key"]
    (signed_out.folder / "platform.json").write_text(
        json.dumps({"url": "https://elsewhere.example", "project": "prj_x", "environment": "env_x"})
    )
    assert signed_out.error("users", "list", code=2, PLATFORM_TOKEN=key)["code"] == "no_url"
    assert len(signed_out.json("users", "list", PLATFORM_TOKEN=key, PLATFORM_URL=served.base_url)) == 2


@pytest.mark.parametrize("how", [["--email", "a@example.com"], ["--token"]])
def test_a_link_in_a_cloned_repository_gets_no_piped_password(signed_out: Cli, how: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        url = f"http://127.0.0.1:{elsewhere.getsockname()[1]}"
        (signed_out.folder / "platform.json").write_text(
            json.dumps({"url": url, "project": "prj_x", "environment": "env_x"})
        )
        error = signed_out.error("login", *how, stdin="correct horse battery", code=2)
        assert (error["code"], error["hint"]) == ("no_url", f"If it is your service, add --url {url}")
        elsewhere.setblocking(False)
        with pytest.raises(BlockingIOError):
            elsewhere.accept()


def test_a_prompt_names_the_service_that_gets_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(account, "secret_input", lambda prompt: prompt)
    assert account._secret("Password", "https://elsewhere.example", None) == "Password for https://elsewhere.example"


@pytest.mark.parametrize(
    "url",
    [
        "http://platform.example.com",
        "http://127.evil.example",
        "ftp://x",
        "platform",
        "https://u:p@x",
        "http://x:99999",
        "http://[",
    ],
)
def test_a_url_that_would_send_credentials_in_the_clear_or_is_none(signed_out: Cli, url: str) -> None:
    assert signed_out.error("login", "--url", url, "--email", "a@example.com", code=2)["code"] == "invalid_url"


def test_not_signed_in(signed_out: Cli, served: Up) -> None:
    error = signed_out.error("link", "--url", served.base_url, code=4)
    assert error["hint"] == f"Run: platform login --url {served.base_url}"


def test_an_expired_access_token_is_refreshed_once_by_many_commands(cli: Cli, served: Up) -> None:
    stored = json.loads(cli.credentials.read_text())
    stored[served.base_url]["token"] = "eyJ.expired.token"
    cli.credentials.write_text(json.dumps(stored))
    running = [cli.process("keys", "list", "--json") for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert json.loads(cli.credentials.read_text())[served.base_url]["token"] != "eyJ.expired.token"
    assert stat.S_IMODE(cli.credentials.stat().st_mode) == 0o600
    cli.json("keys", "list")


def test_a_session_that_ended_elsewhere(cli: Cli, app: App) -> None:
    stored = json.loads(cli.credentials.read_text())[app.served.base_url]
    with httpx.Client(headers={"Authorization": f"Bearer {stored['token']}"}) as client:
        assert client.post(f"{app.served.base_url}/v1/auth/revoke", json={"scope": "current"}).status_code < 300
    error = cli.error("keys", "list", code=4)
    assert (error["code"], error["hint"]) == ("session_ended", "Sign in again: platform login")
    cli.login(app.served.facts["account"])


def test_a_revoked_key(cli: Cli, app: App) -> None:
    made = cli.json("keys", "create", "CI", "--preset", "ci")
    token = {"PLATFORM_TOKEN": made["secret"], "PLATFORM_URL": app.served.base_url}
    cli.run("types", "--out", "-", **token)
    cli.run("keys", "revoke", made["id"], "--yes")
    error = cli.error("types", code=4, **token)
    assert error["code"] == "unauthorized"
    assert "PLATFORM_TOKEN" in error["hint"]
    assert made["secret"] not in json.dumps(error)
    assert not (cli.folder / "types.ts").exists()


def test_a_key_of_another_environment(signed_out: Cli, served: Up) -> None:
    token = {"PLATFORM_TOKEN": served.facts["server_key"], "PLATFORM_URL": served.base_url}
    error = signed_out.error("users", "list", "-e", "env_0123456789abcdefghjkmnpqrs", code=5, **token)
    assert "Name its own, or use another token." in error["message"]


def test_link_by_name_and_its_errors(cli: Cli, app: App) -> None:
    assert cli.error("link", code=2)["code"] == "ambiguous"
    assert cli.error("link", "Nothing", code=5)["code"] == "not_found"
    error = cli.error("link", app.project_id, "--environment", "staging", code=5)
    assert "development" in error["hint"]
    assert "Did you mean" not in error["message"]
    for name in ("prod", "prodction"):
        error = cli.error("keys", "list", "-e", name, code=5)
        assert error["message"] == f'There is no environment "{name}" in this project. Did you mean "production"?'
    linked = json.loads((cli.folder / "platform.json").read_text())
    assert linked["environment"] == app.environment
    below = cli.folder / "src"
    below.mkdir()
    cli.folder = below
    cli.run("keys", "list")
    cli.folder = below.parent
    (cli.folder / "platform.json").write_text("{")
    assert cli.error("keys", "list", code=2)["code"] == "invalid_link"
    cli.run("link", app.project_id, "--url", app.served.base_url)


def test_an_environment_of_another_project(cli: Cli, app: App) -> None:
    (cli.folder / "platform.json").write_text(
        json.dumps({"url": app.served.base_url, "project": app.project_id, "environment": "env_" + "0" * 26})
    )
    assert cli.error("types", code=5)["code"] == "not_found"


@pytest.mark.parametrize(
    ("name", "value"), [("project", "../keys"), ("environment", "env_x\r\nX-A: b"), ("environment", "")]
)
def test_a_link_cannot_lead_to_another_endpoint_or_header(cli: Cli, app: App, name: str, value: str) -> None:
    link = {"url": app.served.base_url, "project": app.project_id, "environment": app.environment}
    (cli.folder / "platform.json").write_text(json.dumps({**link, name: value}))
    assert cli.error("branch", "list", code=2)["code"] == "invalid_link"
    assert cli.error("keys", "list", code=2)["code"] == "invalid_link"
    (cli.folder / "platform.json").write_text(json.dumps(link))


@pytest.mark.parametrize("token", ["sk_ä", "sk_x\ty", "sk_x y"])
def test_a_token_that_no_header_can_contain(signed_out: Cli, served: Up, token: str) -> None:
    error = signed_out.error("login", "--url", served.base_url, "--token", stdin=token, code=2)
    assert error["code"] == "invalid_token"
    assert token not in json.dumps(error, ensure_ascii=False)


def test_a_folder_that_cannot_be_written(signed_out: Cli, served: Up) -> None:
    account = served.facts["account"]
    login = ("login", "--url", served.base_url, "--email", account["email"])
    assert (
        signed_out.error(*login, stdin=account["password"], code=2, PLATFORM_CONFIG_DIR="/proc/no")["code"]
        == "file_error"
    )


def test_files_that_cannot_be_written(cli: Cli) -> None:
    message = cli.error("types", "--out", "/proc/types.ts", code=2)["message"]
    assert message == "/proc/types.ts cannot be written: No such file or directory."


def test_a_folder_that_cannot_be_written_gets_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(Failure, match="cannot be written"):
        account.init("Never")


def test_a_folder_that_was_deleted(signed_out: Cli) -> None:
    script = 'cd gone; rmdir ../gone; exec "$@"'
    (signed_out.folder / "gone").mkdir()
    command = (sys.executable, "-m", "platform_site.developer_cli", "plan")
    assert _ended(signed_out, "sh", "-c", script, "sh", *command) == (2, "Error: The current folder was deleted.\n")


def test_wrong_usage_with_json(signed_out: Cli) -> None:
    assert signed_out.error("keys", "lisst", code=2)["code"] == "usage"
    assert signed_out.error("keys", "list", "--nothing", code=2)["code"] == "usage"
    assert "No such command" in signed_out.run("lgin", code=2).stderr


def test_offline(signed_out: Cli) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    error = signed_out.error("login", "--url", url, "--email", "a@example.com", stdin="password", code=6)
    assert error["code"] == "unreachable"
    assert url in error["message"]


class _Other(BaseHTTPRequestHandler):
    """A server that is not the platform, or is older than the command."""

    status, body, kind = 200, b"<h1>Welcome</h1>", "text/html"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(self.status)
        self.send_header("content-type", self.kind)
        self.send_header("content-length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        pass


_OLD = {"error": {"code": "not_found", "message": "There is no such endpoint.", "request_id": "req_1"}}


@pytest.mark.parametrize(
    ("status", "body", "kind", "code"),
    [
        (200, b"<h1>Welcome</h1>", "text/html", "unexpected_response"),
        (404, b"<h1>Not here</h1>", "text/html", "unexpected_response"),
        (302, b"", "text/html", "unexpected_response"),
        (404, json.dumps(_OLD).encode(), "application/json", "server_too_old"),
        (200, b'{"something": "else"}', "application/json", "unexpected_response"),
        (200, b"[]", "application/json", "unexpected_response"),
        (200, b"{", "application/json", "unexpected_response"),
    ],
)
def test_another_version_or_another_server(signed_out: Cli, status: int, body: bytes, kind: str, code: str) -> None:
    handler = type("Handler", (_Other,), {"status": status, "body": body, "kind": kind})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        error = signed_out.error("login", "--url", url, "--email", "a@example.com", stdin="password", code=8)
        server.shutdown()
    assert error["code"] == code


def test_types_on_standard_output_cannot_control_the_terminal(signed_out: Cli) -> None:
    facts = {"body": b"type A = 1;\n\tx\x1b[2K\xc2\x9b2Ky\n", "kind": "application/typescript"}
    handler = type("Handler", (_Other,), {**facts, "do_GET": _Other.do_POST})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        done = signed_out.run("types", "-o", "-", PLATFORM_URL=url, PLATFORM_TOKEN="sk_x")
        server.shutdown()
    assert done.stdout == "type A = 1;\n\tx\\x1b[2K\\x9b2Ky\n"


def test_interrupted(signed_out: Cli) -> None:
    """Ctrl-C while the service is slow: no traceback, exit code 130."""
    with socket.create_server(("127.0.0.1", 0)) as slow:
        url = f"http://127.0.0.1:{slow.getsockname()[1]}"
        process = signed_out.process("login", "--url", url, "--email", "a@example.com")
        assert process.stdin is not None
        process.stdin.write("password\n")
        process.stdin.flush()
        slow.settimeout(30)
        connection, _ = slow.accept()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        connection.close()
    assert (process.returncode, out) == (130, "")
    assert err.strip() == "Error: Interrupted."
    assert not signed_out.credentials.exists()


INTERRUPTED_IMPORT = """
import runpy, sys

class Interrupts:
    def find_spec(self, name, *arguments):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
runpy.run_module("platform_site.developer_cli", run_name="__main__")
"""


def _ended(cli: Cli, *command: str, **options: Any) -> tuple[int, str]:
    done = subprocess.run(command, cwd=cli.folder, env=cli.environment, stderr=subprocess.PIPE, text=True, **options)
    return done.returncode, done.stderr


def test_interrupted_before_the_command_begins(signed_out: Cli) -> None:
    assert _ended(signed_out, sys.executable, "-c", INTERRUPTED_IMPORT) == (130, "Error: Interrupted.\n")


@pytest.mark.parametrize("arguments", [["open", "--url", "https://elsewhere.example"], ["--help"], ["plan", "--help"]])
def test_output_that_nobody_reads(signed_out: Cli, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = (sys.executable, "-m", "platform_site.developer_cli", *arguments)
    assert _ended(signed_out, *command, stdout=writer) == (141, "")
    os.close(writer)


@pytest.mark.parametrize(
    ("to", "errors"), [("", "Error: The output cannot be written: No space left on device.\n"), ("2>&1", "")]
)
def test_output_to_a_full_disk(signed_out: Cli, to: str, errors: str) -> None:
    command = (sys.executable, "-m", "platform_site.developer_cli", "--help")
    assert _ended(signed_out, "sh", "-c", f'exec "$@" >/dev/full {to}', "sh", *command) == (2, errors)


@pytest.mark.parametrize(("closed", "arguments", "code"), [("<&-", ["login"], 2), (">&-", ["open"], 0)])
def test_closed_standard_streams(signed_out: Cli, closed: str, arguments: list[str], code: int) -> None:
    command = (sys.executable, "-m", "platform_site.developer_cli", *arguments)
    ended, errors = _ended(signed_out, "sh", "-c", f'exec "$@" {closed}', "sh", *command)
    assert ended == code
    assert "Traceback" not in errors


def test_open_prints_the_url_in_a_pipe(cli: Cli, app: App, served: Up) -> None:
    page = cli.run("open").stdout.strip()
    assert page == f"{served.base_url}/console/{app.project_id}/{app.environment}/"
    assert httpx.get(page, follow_redirects=True).url.path == "/console/sign-in"
    assert cli.run("open", "--url", "https://elsewhere.example").stdout.strip() == "https://elsewhere.example/console/"
    assert cli.json("open", "--docs") == {"url": f"{served.base_url}/docs"}
