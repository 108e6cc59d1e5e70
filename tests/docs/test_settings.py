"""docs/reference/settings.md has every variable that the settings read, with the default and the bounds that they
have."""

import importlib
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from django.conf import LazySettings
from django.core.exceptions import ImproperlyConfigured

from platform_site import env
from tests.support.service import ROOT

UNSPOKEN = {"FAILPOINT"}
"""For tests of crashes alone."""
UNITS = {"_SECONDS": "s", "_MS": "ms", "_DAYS": "days", "_BYTES": "bytes", "_ROWS": "rows"}
SECRETS = {"SECRET_KEY": "s" * 64, "ENCRYPTION_KEYS": "11" * 32}


class Row(NamedTuple):
    default: str
    unit: str
    least: str
    most: str


class Read(NamedTuple):
    """What the settings asked of a reader of `platform_site.env`."""

    reader: str
    arguments: tuple[Any, ...]
    bounds: dict[str, float]


def documented() -> dict[str, Row]:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    lines = re.findall(r"^\| `([A-Z_0-9]+)` \| (.*?) \| (.*?) \| ?([\d.]*)-?(\d*) ?\|", page, re.MULTILINE)
    rows = {name: Row(*cells) for name, *cells in lines}
    assert len(rows) == len(lines), "a variable is there twice"
    return rows


def in_production(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **variables: str) -> dict[str, Any]:
    """The settings of a machine on which nothing is set but the mode, the secrets and these."""
    for name in documented():
        monkeypatch.delenv(name, raising=False)
    given = {"PLATFORM_MODE": "production", "DATA_DIR": str(tmp_path), **SECRETS, **variables}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with monkeypatch.context() as patched:
        for name in [name for name in sys.modules if name.split(".")[:2] == ["platform_site", "settings"]]:
            patched.delitem(sys.modules, name)
        return vars(importlib.import_module("platform_site.settings"))


def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Read]:
    found: dict[str, Read] = {}

    def remembering(reader: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def reading(name: str, *arguments: Any, **bounds: float) -> Any:
            found.setdefault(name, Read(reader, arguments, bounds))  # `integer` asks `number`: the first is meant
            return real(name, *arguments, **bounds)

        return reading

    with monkeypatch.context() as patched:
        for reader in (
            "text",
            "hosts",
            "server",
            "boolean",
            "number",
            "numbers",
            "integer",
            "words",
            "postgres_urls",
            "choice",
            "origin",
            "domain",
        ):
            patched.setattr(env, reader, remembering(reader, getattr(env, reader)))
        in_production(patched, tmp_path)
    return found


def test_each_variable_is_there_and_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert set(documented()) == set(read(monkeypatch, tmp_path)) - UNSPOKEN


def test_defaults_and_bounds_are_those_of_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows, wrong = documented(), []
    for name, (reader, arguments, bounds) in read(monkeypatch, tmp_path).items():
        if name in UNSPOKEN:
            continue
        expected = rows[name]
        match reader:
            case "number" | "integer" | "numbers":
                least, most = bounds["minimum"], bounds.get("maximum", env.MAX_INTEGER)
                expected = expected._replace(least=f"{least:.15g}", most=f"{most:.15g}")
                if arguments:
                    expected = expected._replace(default=f"{arguments[0]:.15g}")
            case "boolean":
                expected = Row("1" if arguments and arguments[0] else "0", "yes or no", "", "")
            case "choice":
                expected = Row(arguments[1], ", ".join(f"`{each}`" for each in arguments[0]), "", "")
        for suffix, unit in UNITS.items():
            if name.endswith(suffix):
                expected = expected._replace(unit=unit)
        if rows[name] != expected:
            wrong.append((name, expected))
    assert wrong == []


def bounded() -> list[tuple[str, str, str]]:
    """Each number with a value that is just outside, and what is said of it."""
    found = []
    for name, row in documented().items():
        if row.least:
            found.append(
                (name, "-1" if row.least == "0" else "0", f"{name} must be at least {float(row.least):g}, not")
            )
            found.append((name, str(int(row.most) + 1), f"{name} must be at most {row.most}, not"))
            found.append((name, "soon", f"{name} must be a number, not 'soon'"))
    return found


@pytest.mark.parametrize(("name", "value", "said"), bounded())
def test_a_number_outside_of_its_bounds_stops_the_start_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str, said: str
) -> None:
    with pytest.raises(ImproperlyConfigured) as refused:
        in_production(monkeypatch, tmp_path, **{name: value})
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("name", [name for name, row in documented().items() if row.least])
def test_an_empty_number_is_an_unset_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    in_production(monkeypatch, tmp_path, **{name: ""})


def test_a_lease_too_short_for_an_attempt_stops_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"^WEBHOOK_LEASE_SECONDS \(30\) must be at least twice"):
        in_production(monkeypatch, tmp_path, WEBHOOK_TIMEOUT_SECONDS="15.5")
    in_production(monkeypatch, tmp_path, WEBHOOK_TIMEOUT_SECONDS="600", WEBHOOK_LEASE_SECONDS="1200")


def test_the_base_url_is_an_origin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert in_production(monkeypatch, tmp_path, PLATFORM_DOMAIN="api.example")["BASE_URL"] == "https://api.example"
    there = in_production(monkeypatch, tmp_path, BASE_URL="https://b.example/")
    assert there["BASE_URL"] == there["SIMPLE_JWT"]["ISSUER"] == "https://b.example"
    with pytest.raises(ImproperlyConfigured, match="^BASE_URL must be"):
        in_production(monkeypatch, tmp_path, BASE_URL="https://b.example/api")


def test_a_database_takes_what_its_settings_may_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: LazySettings
) -> None:
    there = settings.DATABASES["default"]
    names = [
        name for name, row in documented().items() if row.most and name.endswith(("TIMEOUT_MS", "SILENCE_SECONDS"))
    ]
    for column in ("least", "most"):
        chosen = {name: getattr(documented()[name], column) for name in names}
        asked = in_production(monkeypatch, tmp_path, **chosen)["DATABASES"]["default"]["OPTIONS"]
        libpq = {name: asked[name] for name in asked if name.startswith(("connect", "keepalives", "tcp", "options"))}
        user = {"user": there["USER"], "password": there["PASSWORD"], "dbname": there["NAME"]}
        with psycopg.connect(host=there["HOST"], **user, **libpq) as connection:
            [found] = connection.execute("SELECT current_setting('statement_timeout')").fetchall()
            assert found == ({"least": "100ms", "most": "2147483647ms"}[column],)
            lock = chosen["SCHEMA_LOCK_TIMEOUT_MS"]  # doubled by half where indexes wait (`rows.migrate.apply`)
            connection.execute("SELECT set_config('lock_timeout', %s, true)", [str(int(lock) * 3 // 2)])
        # Over TCP the kernel is configured before it connects: no server listens there.
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            with pytest.raises(psycopg.OperationalError, match="Connection refused"):
                psycopg.connect(host="127.0.0.1", port=taken.getsockname()[1], **user, **libpq)


def test_nothing_below_the_level_is_logged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not a request's line either, nor what libraries log."""
    logging = in_production(monkeypatch, tmp_path, LOG_LEVEL="ERROR")["LOGGING"]
    assert logging["handlers"]["stderr"]["level"] == "ERROR"
    assert logging["loggers"]["platform.access"]["level"] == "ERROR"
