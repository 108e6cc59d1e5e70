"""A real streaming replica of an embedded PostgreSQL, which a test may pause, freeze, kill and start again."""

import contextlib
import pwd
import re
import shutil
import signal
import subprocess
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg

from platform_site.embedded import launch
from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import REGIONS, Layout, region_database
from platform_site.embedded.sockets import MAX_BY_DEFAULT
from tests.support.service import wait_for


class Standby:
    """The cluster lies in `directory`/data, its socket in `directory`."""

    def __init__(self, primary: Layout, directory: Path) -> None:
        self.primary, self.directory = primary, directory
        self._secrets = primary.ensure_secrets()
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, region: str, user: str = "platform") -> str:
        name = "postgres_password" if user == "platform" else "postgres_superuser_password"
        password = quote(self._secrets[name], safe="")
        return f"postgresql://{user}:{password}@/{region_database(region)}?host={quote(str(self.directory), safe='')}"

    def make(self) -> None:
        """Copy the running primary, and follow it from there."""
        source = self.primary.postgres_url("postgres", user="postgres", password_name="postgres_superuser_password")
        self._owner_gets(self.directory)
        data = self.directory / "data"
        self._run("pg_basebackup", "-D", str(data), "-R", "-X", "stream", "--checkpoint=fast", "-d", source)

    def start(self) -> None:
        (self.directory / ".s.PGSQL.5432.lock").unlink(missing_ok=True)
        (self.directory / "data" / "postmaster.pid").unlink(missing_ok=True)
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": f'"{self.directory}"',
            "max_connections": str(embedded_postgres.max_connections(MAX_BY_DEFAULT)),
            "hot_standby_feedback": "off",
            "max_standby_streaming_delay": "0",  # what conflicts with the replay is cancelled at once
            "fsync": "off",
            "shared_buffers": "64MB",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [*self._launcher(), str(embedded_postgres.binaries() / "postgres"), "-D", str(self.directory / "data"), *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
            )  # fmt: skip
        wait_for("the replica answers", self._answers, 30)

    def kill(self) -> None:
        """Whatever the server is doing, it is gone; its children go by themselves."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def signal_all(self, number: signal.Signals) -> None:
        """Freeze or thaw the server with all its processes."""
        assert self._process is not None
        main = psutil.Process(self._process.pid)
        for one in (main, *main.children()):  # each has a session of its own
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)

    def stop(self) -> None:
        if self._process is not None:
            self.signal_all(signal.SIGCONT)
            self._process.send_signal(signal.SIGINT)
            self._process.wait(20)

    def connect(self, region: str = REGIONS[0]) -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(self.url(region, "postgres"), autocommit=True, connect_timeout=2)

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        while True:
            with contextlib.suppress(psycopg.errors.SerializationFailure), self.connect() as connection:
                return connection.execute(statement).fetchall()  # type: ignore[arg-type]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "log").read_text()[-3000:]
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def _launcher(self) -> list[str]:
        return launch.launcher(signal.SIGKILL, embedded_postgres.server_user(self.primary))

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._launcher(), str(embedded_postgres.binaries() / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, done.stderr

    def _owner_gets(self, path: Path) -> None:
        if user := embedded_postgres.server_user(self.primary):
            shutil.chown(path, pwd.getpwnam(user).pw_uid)


def counted(metrics: str, replica: str, outcome: str) -> int:
    """What `/metrics` says of the statements that were tried on a replica."""
    found = re.search(
        rf'^platform_replica_reads_total{{outcome="{outcome}",replica="{replica}"}} (\S+)', metrics, re.MULTILINE
    )
    return int(float(found[1])) if found else 0
