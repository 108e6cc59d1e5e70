"""Minimum versions of servers and runtime, checked at start, since PostgreSQL and Redis may be external. A development
machine gets a log message; with PLATFORM_MODE=production the service does not start."""

import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from typing import Final

import redis
from django.conf import settings
from django.db import Error, connections

Version = tuple[int, ...]

POSTGRES: Final[Mapping[Version, Version]] = {(18,): (18, 0)}
"""18 has `RETURNING WITH (OLD AS …, NEW AS …)`, which every write of rows uses."""
VALKEY: Final[Mapping[Version, Version]] = {(7, 2): (7, 2, 11), (8, 0): (8, 0, 6), (8, 1): (8, 1, 4)}
REDIS: Final[Mapping[Version, Version]] = {
    (6, 2): (6, 2, 20),
    (7, 2): (7, 2, 11),
    (7, 4): (7, 4, 6),
    (8, 0): (8, 0, 4),
    (8, 2): (8, 2, 2),
}
"""As VALKEY, CVE-2025-49844: an escape from the Lua sandbox."""
DENO: Final[Version] = (2, 9, 0)
"""CVE-2026-49860, and the permission fixes of 2.7.12."""


def is_below(version: Version, minimums: Mapping[Version, Version]) -> bool:
    """By the minimum of its release line. A newer line is not below, an unlisted older one is."""
    for line, minimum in minimums.items():
        if version[: len(line)] == line:
            return version < minimum
    return version < max(minimums.values())


def parse(text: str) -> Version:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def problems() -> list[str]:
    return [*_databases(), *_redis(), *_deno()]


def _databases() -> Iterable[str]:
    for alias in connections:
        try:
            connections[alias].ensure_connection()
        except Error:
            continue
        number = connections[alias].pg_version  # type: ignore[attr-defined]
        version = (number // 10000, number % 10000)
        if is_below(version, POSTGRES):
            yield f"The database {alias} runs PostgreSQL {version[0]}.{version[1]}. Use 18 or later."


def _redis() -> Iterable[str]:
    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=1, socket_connect_timeout=1)
    try:
        facts = client.info("server")
    except redis.RedisError:
        return
    finally:
        client.close()
    if "valkey_version" in facts:
        name, version, minimums = "Valkey", parse(str(facts["valkey_version"])), VALKEY
    else:
        name, version, minimums = "Redis", parse(str(facts["redis_version"])), REDIS
    if is_below(version, minimums):
        yield f"{name} {'.'.join(map(str, version))} has known vulnerabilities: update it."


def _deno() -> Iterable[str]:
    try:
        version = parse(importlib.metadata.version("deno"))
    except importlib.metadata.PackageNotFoundError:
        return
    if version < DENO:
        yield f"Deno {'.'.join(map(str, version))} has known vulnerabilities: install deno>=2.9."
