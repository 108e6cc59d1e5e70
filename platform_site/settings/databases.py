from typing import Any

from platform_site import env
from platform_site.embedded.data_dir import REGIONS, region_database, region_variable
from platform_site.settings.base import LAYOUT

STATEMENT_TIMEOUT_MS = env.integer("STATEMENT_TIMEOUT_MS", 5000, minimum=100)
AGGREGATE_STATEMENT_TIMEOUT_MS = env.integer("AGGREGATE_STATEMENT_TIMEOUT_MS", 2000, minimum=100)
LOCK_TIMEOUT_MS = env.integer("LOCK_TIMEOUT_MS", 2000, minimum=50)
IDLE_IN_TRANSACTION_TIMEOUT_MS = env.integer("IDLE_IN_TRANSACTION_TIMEOUT_MS", 10_000, minimum=1000)
DATABASE_SILENCE_SECONDS = env.integer("DATABASE_SILENCE_SECONDS", 4, minimum=1, maximum=120)
SCHEMA_LOCK_TIMEOUT_MS = env.integer("SCHEMA_LOCK_TIMEOUT_MS", 200, minimum=10, maximum=600_000)
SCHEMA_LOCK_ATTEMPTS = env.integer("SCHEMA_LOCK_ATTEMPTS", 10, minimum=1, maximum=1000)
SCHEMA_STATEMENT_TIMEOUT_MS = env.integer("SCHEMA_STATEMENT_TIMEOUT_MS", 60_000, minimum=1000)
SCHEMA_LARGE_TABLE_ROWS = env.integer("SCHEMA_LARGE_TABLE_ROWS", 100_000, minimum=0)
PREPARED_STATEMENTS = env.boolean("DATABASE_PREPARED_STATEMENTS", True)
TABLES_PER_CONNECTION = env.integer("TABLES_PER_CONNECTION", 2_000, minimum=1)


def _direct_variable(name: str) -> str:
    return name.removesuffix("_URL") + "_DIRECT_URL"


def _parts(name: str, url: str) -> dict[str, Any]:
    parts: dict[str, Any] = dict(env.postgres(name, url))
    libpq = {key: parts.pop(key) for key in list(parts) if key.startswith("OPTIONS:")}
    return parts | {"OPTIONS": {key.removeprefix("OPTIONS:"): value for key, value in libpq.items()}}


def _direct_databases() -> dict[str, dict[str, Any]]:
    """For databases behind a pooler (`platform_site.postgres.direct`)."""
    names = {"default": "DATABASE_URL", **{region: region_variable(region) for region in REGIONS}}
    variables = {alias: _direct_variable(name) for alias, name in names.items()}
    return {alias: _parts(name, url) for alias, name in variables.items() if (url := env.text(name))}


DIRECT_DATABASES = _direct_databases()


def _database(
    name: str, url: str, search_path: str, *, prepare_threshold: int | None, session: dict[str, str] | None = None
) -> dict[str, Any]:
    parts = _parts(name, url)
    libpq = parts["OPTIONS"]
    given = libpq.pop("options", "").split()  # first, because the last value of a setting applies
    settings_of_the_session = {
        "search_path": search_path,
        "statement_timeout": f"{STATEMENT_TIMEOUT_MS}",
        "lock_timeout": f"{LOCK_TIMEOUT_MS}",
        "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_TIMEOUT_MS}",
        "jit": "off",
        "max_parallel_workers_per_gather": "0",
        # If a client's host is gone, PostgreSQL releases its locks within about 20 s.
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "2",
        "tcp_user_timeout": "20000",
        **(session or {}),
    }
    return parts | {
        "ENGINE": "platform_site.postgres",
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": True,
        # Such a cursor can outlive its transaction, and a pooler then gives the session to others.
        "DISABLE_SERVER_SIDE_CURSORS": env.text(_direct_variable(name)) is not None,
        "OPTIONS": {
            "connect_timeout": 2,
            # Keepalive bounds the wait for an answer, `tcp_user_timeout` that for a statement to be acknowledged.
            "keepalives_idle": 2,
            "keepalives_interval": 1,
            "keepalives_count": max(1, DATABASE_SILENCE_SECONDS - 2),
            "tcp_user_timeout": DATABASE_SILENCE_SECONDS * 1000,
            "application_name": "backend-platform",
            "options": " ".join([*given, *(f"-c {key}={value}" for key, value in settings_of_the_session.items())]),
            # Bind in the server, and let psycopg prepare repeated statements: saves 50-60 µs each.
            "server_side_binding": True,
            "prepare_threshold": prepare_threshold if PREPARED_STATEMENTS else None,
            **libpq,
        },
    }


REGION_DATABASES = list(REGIONS)
DATABASES = {
    "default": _database(
        "DATABASE_URL", env.text("DATABASE_URL") or LAYOUT.postgres_url("control"), "public", prepare_threshold=2
    ),
    **{
        region: _database(
            region_variable(region),
            env.text(region_variable(region)) or LAYOUT.postgres_url(region_database(region)),
            "platform",
            # `platform_site.postgres.prepared` prepares instead: psycopg sends DEALLOCATE ALL after a rollback, which
            # would also drop those statements.
            prepare_threshold=None,
        )
        for region in REGIONS
    },
}
REPLICA_LAG_LIMIT = env.number("REPLICA_LAG_LIMIT_MS", 1000, minimum=100) / 1000


def _replicas(region: str) -> dict[str, dict[str, Any]]:
    name = region_variable(region).removesuffix("_URL") + "_REPLICA_URLS"
    session = {
        "default_transaction_read_only": "on",
        # On a replica, locks are held while a schema change is replayed.
        "lock_timeout": f"{min(LOCK_TIMEOUT_MS, int(REPLICA_LAG_LIMIT * 1000))}",
    }
    return {
        f"{region}-replica-{number}": _database(name, url, "platform", prepare_threshold=None, session=session)
        for number, url in enumerate(env.postgres_urls(name), 1)
    }


REPLICAS = {region: found for region in REGIONS if (found := _replicas(region))}
DATABASE_ROUTERS = ["platform_site.postgres.routers.RegionRouter"]
