"""The service on the hosts of a `Network`: databases, Valkey, web and workers, each started as docs/deploy does.

One cluster is made and copied, so that four databases cost one initdb. All servers listen on the IP address of their host only;
what belongs to a host is started inside of its namespace and is a child of the test, which ends it by its process id.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import redis

from platform_site.embedded import launch
from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded import valkey as embedded_valkey
from platform_site.embedded.data_dir import REGIONS, Layout, region_database, region_variable
from tests.machines.network import Network
from tests.support.service import ROOT, wait_for

DATABASES = {"control": "control", **{region: region_database(region) for region in REGIONS}}
"""The database that each host of one serves."""
WEBS, WORKERS = ("web1", "web2"), ("work1", "work2")
CACHE = "cache"
"""The host of Valkey."""
HOSTS = (*DATABASES, CACHE, *WEBS, *WORKERS)
PORT = 8000


class Site:
    """`with Site(network, directory) as site:`; `site.client("web1")` asks one web host as a balancer would."""

    def __init__(self, network: Network, directory: Path, environment: dict[str, str]) -> None:
        self.network, self.directory = network, directory
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.redis_password = secrets.token_hex(16)
        self.template = Layout(directory / "template")
        self.layouts = {host: Layout(directory / host) for host in DATABASES}
        self._more = environment
        self._environment: dict[str, str] = {}

    def __enter__(self) -> "Site":
        try:
            self._start_databases()
            self._start_valkey()
            self._environment = self._settings()
            done = subprocess.run(
                [sys.executable, str(ROOT / "manage.py"), "migrate", "--verbosity", "0"],
                env=self._environment, capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            for host in WEBS:
                self.start(host)
            for host in WORKERS:
                self.start(host)
            for host in WEBS:
                wait_for(f"{host} answers", lambda: self.is_healthy(host), 60, every=0.2)  # noqa: B023
        except BaseException as error:
            error.add_note(self.logs())
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            # Databases last: stopping processes return their claims to them.
            for names in ((*WEBS, *WORKERS), (*DATABASES, "valkey")):
                going = [self.processes[name] for name in names if name in self.processes]
                for process in going:
                    if process.poll() is None:
                        # PostgreSQL takes SIGTERM as "when all clients have disconnected".
                        fast = names[0] == "control" and number == signal.SIGTERM
                        process.send_signal(signal.SIGINT if fast else number)
                for process in going:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(15)
        for layout in [*self.layouts.values(), self.template]:
            shutil.rmtree(layout.sockets, ignore_errors=True)

    # ── what runs ──

    def start(self, host: str) -> None:
        """Start the web or the worker of that host."""
        if host in WEBS:
            command = ["serve", "--host", self.network.address(host), "--port", str(PORT), "--workers", "2"]
        else:
            command = ["work", "--concurrency", "16", *(["--beat"] if host == WORKERS[0] else [])]
        environment = self._environment | {"DATA_DIR": str(self.directory / host)}
        self._spawn(host, [sys.executable, str(ROOT / "manage.py"), *command], host, environment)

    def _spawn(self, name: str, command: list[str], host: str, environment: dict[str, str] | None = None) -> None:
        ip = shutil.which("ip")
        assert ip is not None
        with open(self.directory / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [*launch.launcher(signal.SIGKILL), ip, *self.network.inside(host)[1:], *command],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _start_databases(self) -> None:
        server = embedded_postgres.start(self.template, durable=False)
        server.send_signal(signal.SIGINT)
        server.wait(20)
        user = embedded_postgres.server_user(self.template)
        assert user is not None, "root is another user to PostgreSQL"
        with open(self.template.postgres / "pg_hba.conf", "a") as rules:
            rules.write(f"host all all {self.network.prefix}.0/24 scram-sha-256\n")
        for host, layout in self.layouts.items():
            layout.data_dir.mkdir()
            subprocess.run(["cp", "-a", self.template.postgres, layout.postgres], check=True)
            shutil.copy(self.template.secrets_file, layout.secrets_file)
            layout.make_sockets(pwd.getpwnam(user).pw_uid)
            settings = {
                "listen_addresses": self.network.address(host),
                "unix_socket_directories": f'"{layout.sockets}"',
                "max_connections": "200",
                "shared_buffers": "32MB",
                "fsync": "off",
                "full_page_writes": "off",
                "log_min_messages": "log",
            }
            command = [
                *launch.launcher(user=user),
                str(embedded_postgres.binaries() / "postgres"),
                "-D",
                str(layout.postgres),
            ]
            for name, value in settings.items():
                command += ["-c", f"{name}={value}"]
            self._spawn(host, command, host)
        for host, layout in self.layouts.items():
            wait_for(f"the database of {host}", lambda: embedded_postgres.answers(layout), 30)  # noqa: B023

    def _start_valkey(self) -> None:
        configuration = self.directory / "valkey.conf"
        configuration.write_text(
            f"port 6379\nbind {self.network.address(CACHE)}\nprotected-mode yes\nrequirepass {self.redis_password}\n"
            f'dir {self.directory}\nsave ""\nappendonly no\ndaemonize no\nloglevel warning\n'
        )
        self._spawn("valkey", [str(embedded_valkey.binary()), str(configuration)], CACHE)

    def _settings(self) -> dict[str, str]:
        password = self.template.read_secrets()["postgres_password"]

        def url(host: str) -> str:
            return f"postgresql://platform:{password}@{self.network.address(host)}:5432/{DATABASES[host]}"

        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        return inherited | {
            "PLATFORM_MODE": "production",
            "PLATFORM_DOMAIN": "platform.example",
            "SECRET_KEY": secrets.token_hex(48),
            "ENCRYPTION_KEYS": secrets.token_hex(32),
            "DATABASE_URL": url("control"),
            **{region_variable(region): url(region) for region in REGIONS},
            "REDIS_URL": f"redis://:{self.redis_password}@{self.network.address(CACHE)}:6379/0",
            "TRUSTED_PROXIES": self.network.outside,
            "OUTBOUND_ALLOWED_NETWORKS": f"{self.network.outside}/32",
            "RATE_LIMIT_FACTOR": "1000",
            "DATA_DIR": str(self.directory / "release"),
            **self._more,
        }

    def manage(self, *arguments: str, given: str = "") -> str:
        """What `manage.py …` printed, run outside of all namespaces."""
        done = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *arguments],
            env=self._environment, capture_output=True, text=True, input=given,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # ── what is asked ──

    def client(self, host: str, timeout: float = 15.0, **headers: str) -> httpx.Client:
        """A client of one web host that speaks as the balancer, which has taken the TLS off."""
        ours = {"Host": "platform.example", "X-Forwarded-Proto": "https", "X-Forwarded-For": "198.51.100.7"}
        return httpx.Client(
            base_url=f"http://{self.network.address(host)}:{PORT}", headers=ours | headers, timeout=timeout
        )

    def is_healthy(self, host: str) -> bool:
        process = self.processes[host]
        assert process.poll() is None, f"{host} ended with {process.returncode}\n{self.logs(host)}"
        with contextlib.suppress(httpx.HTTPError), self.client(host, timeout=2) as client:
            return client.get("/healthz").status_code == 200
        return False

    def readiness(self, host: str) -> dict[str, Any]:
        with self.client(host) as client:
            found: dict[str, Any] = client.get("/readyz").json()
            return found

    def empty_valkey(self) -> None:
        """Forget every cached record, so that those of callers who come now live for a minute from now."""
        with redis.Redis.from_url(self._environment["REDIS_URL"]) as client:
            client.flushdb()

    def query(self, region: str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Ask a region's database by its socket, which no cut reaches."""
        with embedded_postgres.connect(self.layouts[region], DATABASES[region]) as connection:
            return connection.execute(sql, values).fetchall()  # type: ignore[call-overload, no-any-return]

    def logs(self, *names: str, last: int = 2500) -> str:
        """The ends of the logs, for failure reports."""
        found: Iterator[Path] = (self.directory / f"{name}.log" for name in names or self.processes)
        return "\n".join(
            f"── {path.stem}\n{path.read_text(errors='replace')[-last:]}" for path in found if path.exists()
        )
