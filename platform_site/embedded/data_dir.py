"""Paths and URLs of the embedded services in the data directory, created by `manage.py up`."""

import contextlib
import hashlib
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

REGIONS = ("us-east-1", "eu-west-1", "ap-southeast-1")


class CannotStart(RuntimeError):
    """A reason for the operator, who can change it."""


_SOCKET_PATH_LIMIT = 100  # sockaddr_un holds 108 bytes on Linux, 104 on macOS; PostgreSQL appends 14


def write_private(path: Path, content: Mapping[str, Any]) -> None:
    """Atomically; mode 0600."""
    partial = path.with_suffix(".new")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Empty if there is none, or no JSON object in it."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        content = json.loads(path.read_text())
        if isinstance(content, dict):
            return content
    return {}


class Layout:
    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.postgres = data_dir / "postgres"
        self.valkey = data_dir / "valkey"
        self.secrets_file = data_dir / "secrets.json"
        self.demo_file = data_dir / "demo.json"
        self.demo_steps_file = data_dir / "demo-steps.json"
        self.lock_file = data_dir / "up.lock"
        """Locked (`flock`) by the running `manage.py up`; names it and its children."""

    @property
    def sockets(self) -> Path:
        """The directory of Unix sockets: short, without commas, if need be in the temporary directory."""
        inside = self.data_dir / "run"
        if len(os.fsencode(inside / ".s.PGSQL.5432.lock")) <= _SOCKET_PATH_LIMIT and "," not in str(inside):
            return inside
        digest = hashlib.sha256(str(self.data_dir).encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"backend-platform-{os.getuid()}-{digest}"

    @property
    def valkey_socket(self) -> Path:
        return self.sockets / "valkey.sock"

    def read_secrets(self) -> dict[str, str]:
        try:
            return dict(json.loads(self.secrets_file.read_text()))
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def ensure_secrets(self) -> dict[str, str]:
        """Created or completed, never changed."""
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        known = self.read_secrets()
        passwords = ("postgres_superuser_password", "postgres_password", "redis_password")
        complete = {
            "secret_key": secrets.token_urlsafe(48),
            "encryption_key": secrets.token_hex(32),
            **{name: secrets.token_urlsafe(24) for name in passwords},
            **{name: value for name, value in known.items() if value},
        }
        if complete != known:
            write_private(self.secrets_file, complete)
        return complete

    def postgres_url(self, database: str, *, user: str = "platform", password_name: str = "postgres_password") -> str:  # noqa: S107 - the name of a secret
        password = quote(self.read_secrets().get(password_name, ""), safe="")
        return f"postgresql://{user}:{password}@/{database}?host={quote(str(self.sockets), safe='')}"

    def redis_url(self) -> str:
        password = quote(self.read_secrets().get("redis_password", ""), safe="")
        return f"unix://platform:{password}@{quote(str(self.valkey_socket))}"

    def make_sockets(self, owner: int) -> None:
        """Mode 0700. Raises PermissionError if the directory is not `owner`'s, who could listen there."""
        directory = self.sockets
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {os.geteuid(), owner}:
            raise PermissionError(f"{directory} belongs to another user; remove it or choose another data directory")
        directory.chmod(0o700)
        if found.st_uid != owner:
            os.chown(directory, owner, -1)


def region_database(region: str) -> str:
    return f"region_{region.replace('-', '_')}"


def region_variable(region: str) -> str:
    return f"REGION_{region.replace('-', '_').upper()}_URL"
