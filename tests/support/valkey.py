"""A Valkey that tests may do with as operators do, and make refuse."""

import subprocess
from pathlib import Path
from typing import Literal
from unittest import mock

import redis

from platform_site.embedded import valkey as embedded_valkey
from platform_site.embedded.data_dir import Layout

Refusal = Literal["full", "replica"]


def start_for_operators(layout: Layout, log: Path | None = None) -> subprocess.Popen[bytes]:
    """As `embedded_valkey.start`; its user may do what operators may, who are not the platform."""
    with mock.patch.object(embedded_valkey, "ACL", "~* &* +@all"):
        return embedded_valkey.start(layout, log=log)


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
