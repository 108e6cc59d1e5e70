"""Behind nginx, Caddy and HAProxy, with the files of docs/deploy: requests and streams of changes arrive at once, although
another web host (behind Caddy there is none) has just stopped, and the access log has no secrets."""

import getpass
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.live_changes import READY, TASKS, App, Live
from tests.support.service import ROOT, Up, wait_for

DEPLOY = ROOT / "docs" / "deploy"
ADMIN_PATHS = "/usr/sbin:/sbin"
STOPPED = "127.0.0.1:1"


@pytest.fixture(scope="module")
def app(served: Up) -> Iterator[App]:
    app = App(served)
    yield app
    app.close()


def nginx(text: str, address: str, web: str, folder: Path) -> tuple[str, list[str]]:
    text = text.replace("10.0.0.11:8000", web).replace("10.0.0.12:8000", STOPPED)
    text = re.sub(r"server \{\n    listen 80;.*?\n\}\n", "", text, flags=re.DOTALL)
    text = re.sub(r" *ssl_certificate.*\n", "", text).replace("listen 443 ssl", f"listen {address}")
    text = text.replace("/var/log/nginx/access.log combined", f"{folder}/access.log combined")
    places = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = f"user {getpass.getuser()};\n" if os.getuid() == 0 else ""  # the workers write into the folder
    head = f"{user}daemon off; pid {folder}/pid; error_log {folder}/error.log;\nevents {{}}\n"
    return f"{head}http {{\n{places}{text}\n}}\n", ["nginx", "-e", f"{folder}/error.log", "-c", f"{folder}/config"]


def caddy(text: str, address: str, web: str, folder: Path) -> tuple[str, list[str]]:
    text = text.replace("{$PLATFORM_DOMAIN} {", f"http://{address} {{")
    text = re.sub(r"dynamic a web 8000 \{.*?\}", f"to {web}", text, flags=re.DOTALL)
    return f"{{\n\tadmin off\n}}\n{text}", ["caddy", "run", "--adapter", "caddyfile", "--config", f"{folder}/config"]


def haproxy(text: str, address: str, web: str, folder: Path) -> tuple[str, list[str]]:
    text = re.sub(r"    bind :80\n", "", text)
    text = re.sub(r"bind :443 ssl crt \S+", f"bind {address}", text)
    text = re.sub(r"    http-request redirect .*\n", "", text)
    text = text.replace("server web1 10.0.0.11:8000", f"server web1 {web}")
    text = text.replace("10.0.0.12:8000", f"{STOPPED} no-check").replace("Host api.example.com", f"Host {web}")
    return text, ["haproxy", "-db", "-f", f"{folder}/config"]


@contextmanager
def running(command: list[str], address: str, folder: Path) -> Iterator[None]:
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:

        def is_up() -> bool:
            assert process.poll() is None, (folder / "output").read_text()
            try:
                return httpx.get(f"http://{address}/healthz").status_code == 200
            except httpx.HTTPError:
                return False

        wait_for("the proxy answers", is_up, 20)
        yield
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize(
    ("name", "adapt"),
    [("nginx.conf", nginx), ("Caddyfile", caddy), ("haproxy.cfg", haproxy)],
    ids=lambda value: str(value)[:9],
)
def test_requests_and_streams_pass_and_no_secret_is_logged(
    app: App, tmp_path: Path, name: str, adapt: Callable[[str, str, str, Path], tuple[str, list[str]]]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    text, [program, *arguments] = adapt(
        (DEPLOY / name).read_text(), address, urlsplit(app.served.base_url).netloc, tmp_path
    )
    path = shutil.which(program) or shutil.which(program, path=ADMIN_PATHS)
    if path is None:
        pytest.skip(f"there is no {program} on this machine")
    (tmp_path / "config").write_text(text)
    direct = app.clients["server"]
    with (
        running([path, *arguments], address, tmp_path),
        httpx.Client(
            base_url=f"http://{address}/v1", headers={"Authorization": direct.headers["Authorization"]}, timeout=20
        ) as client,
    ):
        stream = Live(client, TASKS)
        try:
            assert stream.next(2) == READY
            for number in range(3):
                row = client.post("/rows/tasks", json={"title": f"{name} {number}"})
                assert row.status_code == 201
                kind, data = stream.next(2)
                assert (kind, data["id"]) == ("row", row.json()["id"])
            assert stream.is_silent(0.5)
        finally:
            stream.close()
        too_large = client.post("/rows/tasks", json={"title": "x" * 1_100_000})
        assert (too_large.status_code, too_large.json()["error"]["code"]) == (413, "payload_too_large")
        for secret in (
            "/v1/inbound/whk_secret",
            "/auth/reset-password?token=secret",
            "/v1/auth/callback/x?code=secret",
            "/v1/%69nbound/whk_secret",
            "/%61uth/reset-password?token=secret",
        ):
            client.get(f"http://{address}{secret}")
    logged = "".join(path.read_text() for path in tmp_path.iterdir() if path.name in ("access.log", "output"))
    assert name == "Caddyfile" or "/v1/rows/tasks" in logged
    assert "secret" not in logged
