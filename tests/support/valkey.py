"""The embedded Valkey, and one that tests may do with as operators do, and make refuse."""

import contextlib
import subprocess
import time
from pathlib import Path
from typing import Literal
from unittest import mock

import redis

from platform_site.embedded import valkey as embedded_valkey
from platform_site.embedded.data_dir import CannotStart, Layout

Refusal = Literal["full", "replica"]
START_SECONDS = 10.0


def start(layout: Layout, *, log: Path | None = None) -> subprocess.Popen[bytes]:
    layout.sockets.mkdir(mode=0o700, exist_ok=True)
    with open(log, "ab") if log else contextlib.nullcontext() as output:
        server = embedded_valkey.spawn(layout, output=output)
    deadline = time.monotonic() + START_SECONDS
    while not embedded_valkey.answers(layout):
        if server.poll() is not None:
            raise CannotStart(f"Valkey ended at once (exit {server.returncode}).")
        if time.monotonic() > deadline:
            raise CannotStart(f"Valkey did not answer within {START_SECONDS:g} s.")
        time.sleep(0.01)
    return server


def client(layout: Layout) -> redis.Redis:
    return redis.Redis(
        unix_socket_path=str(layout.valkey_socket),
        username="platform",
        password=layout.read_secrets()["redis_password"],
        socket_timeout=30,  # before each test one waits for it, and a busy machine stands still for a second
    )


def start_for_operators(layout: Layout, log: Path | None = None) -> subprocess.Popen[bytes]:
    """As `start`; its user may do what operators may, who are not the platform."""
    with mock.patch.object(embedded_valkey, "ACL", "~* &* +@all"):
        return start(layout, log=log)


def refuse_writes(client: redis.Redis, why: Refusal) -> None:
    """Answer reads, and refuse what would change anything."""
    if why == "full":
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
    else:
        client.replicaof("127.0.0.1", "1")


def take_writes(client: redis.Redis) -> None:
    client.config_set("maxmemory", 0)
    client.replicaof("NO", "ONE")
