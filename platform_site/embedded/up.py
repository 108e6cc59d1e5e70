"""`manage.py up` starts PostgreSQL and Valkey (unless URLs replace them), while it imports the code; then the web,
which migrates, completes the demo and serves; then the worker. Web and worker are forked from here and share the memory
of the code. Django is imported late: its settings read secrets that are created here."""

import argparse
import contextlib
import errno
import gc
import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded import valkey as embedded_valkey
from platform_site.embedded.data_dir import REGIONS, CannotStart, Layout, read_json, region_variable
from platform_site.embedded.forked import ForkedProcess
from platform_site.embedded.lock import DataDirLock
from platform_site.embedded.sockets import default_workers, listen, number_of_workers, port_number
from platform_site.embedded.supervisor import ProcessFailed, SupervisedProcess, Supervisor

ROOT: Final = Path(__file__).resolve().parents[2]
READY_SECONDS: Final = 120.0
UPGRADE_SECONDS: Final = 3600
Load = Callable[[], object]
RunCommand = Callable[[list[str]], object]
_POSTGRES_VARIABLES: Final = ("DATABASE_URL", *map(region_variable, REGIONS))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=port_number, default=8000, help="port to listen on (default %(default)s; 0: a free one)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="IP address to listen on (default %(default)s)")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(os.environ.get("DATA_DIR") or ROOT / ".data"),
        help="where databases, secrets and demo.json live (default .data beside manage.py)",
    )
    parser.add_argument(
        "--workers", type=number_of_workers, default=default_workers(), help="web processes (default %(default)s)"
    )
    parser.add_argument("--no-demo", dest="demo", action="store_false", help="leave the database empty")


def main(arguments: list[str], load: Load, run_command: RunCommand) -> int:
    """`load` imports the code of web and worker; `run_command` is for `manage.py`."""
    parser = argparse.ArgumentParser(prog="manage.py up", description="Starts the whole service in this terminal.")
    add_arguments(parser)
    options, begun = parser.parse_args(arguments), time.monotonic()
    layout = Layout(options.data_dir.expanduser().resolve())
    try:
        layout.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with DataDirLock(layout.lock_file) as lock, contextlib.ExitStack() as stack:
            listeners = _listen(options.host, options.port, options.workers)
            for listener in listeners:
                stack.enter_context(listener)
            lock.port = listeners[0].getsockname()[1]
            return _Run(layout, options, load, run_command, lock, listeners, begun).go()
    except CannotStart as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(f"Cannot use the data directory {layout.data_dir}: {error}", file=sys.stderr)
    return 1


def _listen(host: str, port: int, workers: int) -> list[socket.socket]:
    """Raises CannotStart."""
    try:
        return listen(host, port, workers)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotStart(
                f"Port {port} on {host} is in use by another program. Stop it, or choose another with --port."
            ) from None
        raise CannotStart(f"Cannot listen on {host}:{port}: {error.strerror or error}.") from None


class _ImportThread(threading.Thread):
    def __init__(self, load: Load) -> None:
        super().__init__(name="import", daemon=True)
        self._load = load
        self._error: Exception | None = None

    def run(self) -> None:
        gc.disable()  # it takes a quarter of the import's time, and frees nothing
        try:
            self._load()
        except Exception as error:
            self._error = error

    def prepare_forks(self) -> None:
        """Raises the import's error; CannotStart for that of an invalid setting."""
        from django.core.exceptions import ImproperlyConfigured

        if isinstance(self._error, ImproperlyConfigured):
            raise CannotStart(str(self._error))
        if self._error is not None:
            raise self._error
        gc.collect()
        gc.freeze()
        gc.enable()


@dataclass(eq=False)
class _Run:
    layout: Layout
    options: argparse.Namespace
    load: Load
    run_command: RunCommand
    lock: DataDirLock
    listeners: list[socket.socket]
    begun: float

    def __post_init__(self) -> None:
        layout, options, listeners = self.layout, self.options, self.listeners
        has_colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._supervisor = Supervisor(_write, colour=has_colours, changed=self.lock.record)
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)  # noqa: S104
        port = listeners[0].getsockname()[1]
        self._address = host, port
        self._base_url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._postgres = SupervisedProcess(
            "postgres",
            lambda output: embedded_postgres.spawn(layout, web_processes=len(listeners), output=output),
            signal.SIGINT,
            stop_seconds=8,
            hidden=(
                "starting PostgreSQL",
                "listening on",
                "database system",
                "fast shutdown",
                "aborting any active",
                "terminating connection due to administrator",
                "background worker",
                "could not send data to client",
                "shutting down",
            ),
        )
        self._valkey = SupervisedProcess(
            "valkey",
            lambda output: embedded_valkey.spawn(layout, output=output),
            signal.SIGTERM,
            stop_seconds=3,
            hidden=("Memory overcommit", "signal-handler", "ready to exit"),
        )
        descriptors = ",".join(str(listener.fileno()) for listener in listeners)
        serve = ["serve", "--fds", descriptors, "--prepare", *(["--demo"] if options.demo else [])]
        self._web = SupervisedProcess(
            "web", lambda output: self._fork("platform-web", serve, output), signal.SIGTERM, stop_seconds=9.5
        )
        self._worker = SupervisedProcess(
            "worker",
            lambda output: self._fork("platform-worker", ["work", "--beat"], output, closed=listeners),
            signal.SIGTERM,
            stop_seconds=9.5,
            hidden=("Warm shutdown", "Requeuing undeliverable message"),
        )

    def go(self) -> int:
        code = 0
        try:
            self._start()
            self._supervisor.run()
        except ProcessFailed as failure:
            code = 1
            _write(f"\n{failure}. Its last lines:\n" + "".join(f"    {line}\n" for line in failure.lines[-20:]))
        except CannotStart as failure:
            code = 1
            _write(f"\n{failure}\n")
        finally:
            if code == 0:
                self._supervisor.say("stopping")
            self._supervisor.stop([[self._web, self._worker], [self._valkey, self._postgres]])
        return code

    def _start(self) -> None:
        layout, supervisor = self.layout, self._supervisor
        layout.ensure_secrets()
        defaults = {
            "BASE_URL": self._base_url,
            "DJANGO_SETTINGS_MODULE": "platform_site.settings",
            "LOG_FORMAT": "text",
            # By default, webhooks and functions may call this machine.
            "OUTBOUND_ALLOWED_NETWORKS": "127.0.0.0/8,::1/128",
        }
        os.environ.update({**defaults, **os.environ, "DATA_DIR": str(layout.data_dir)})
        imports = _ImportThread(self.load)
        imports.start()
        replaced = [name for name in _POSTGRES_VARIABLES if os.environ.get(name)]
        if len(replaced) < len(_POSTGRES_VARIABLES):
            if not embedded_postgres.initialised(layout):
                supervisor.say(f"creating the databases in {layout.data_dir}")
            supervisor.start(self._postgres)
        if not os.environ.get("REDIS_URL"):
            if self._postgres.process is None:
                layout.make_sockets(os.geteuid())
            supervisor.start(self._valkey)
        if self._postgres.process is not None:
            if not self._await(lambda: embedded_postgres.answers(layout), "PostgreSQL does not answer."):
                return
            embedded_postgres.provision(layout)
        if self._valkey.process is not None:
            self._await(lambda: embedded_valkey.answers(layout), "Valkey does not answer.")
        if not self._await(lambda: not imports.is_alive(), "The code could not be imported."):
            return
        imports.prepare_forks()
        supervisor.start(self._web)
        if not self._await(
            lambda: _is_ready(self._address), "The web server does not answer.", every=0.05, seconds=UPGRADE_SECONDS
        ):
            return
        supervisor.reload = lambda: supervisor.signal(self._web, signal.SIGHUP)
        supervisor.start(self._worker)
        self._show_urls()

    def _await(self, done: Any, otherwise: str, every: float = 0.02, seconds: float = READY_SECONDS) -> bool:
        """False if stopped. Raises CannotStart(otherwise)."""
        is_done = self._supervisor.run_until(done, seconds=seconds, every=every)
        if not is_done and not self._supervisor.stopping:
            raise CannotStart(otherwise)
        return is_done

    def _fork(
        self, name: str, command: list[str], output: IO[bytes], closed: Sequence[socket.socket] = ()
    ) -> ForkedProcess:
        def leave() -> None:
            self._supervisor.leave()
            self.lock.leave()
            for listener in closed:
                listener.close()
            os.chdir(ROOT)

        return ForkedProcess(name, lambda: self.run_command([sys.argv[0], *command]), output, leave)

    def _show_urls(self) -> None:
        base = self._base_url
        seconds = time.monotonic() - self.begun
        accounts = read_json(self.layout.demo_file) if self.options.demo else {}
        lines = [
            "",
            f"Ready in {seconds:.1f} s. Ctrl-C stops everything; the data stays in {_short(self.layout.data_dir)}",
            "",
        ]
        for label, path, who in (("Console ", "console", "account"), ("Admin   ", "admin", "admin")):
            lines += [f"  {label} {base}/{path}/"]
            if accounts:
                lines += [f"           {accounts[who]['email']}, password {accounts[who]['password']}"]
        lines += [f"  API      {base}/v1 (reference: /docs, guides: /docs/guides)"]
        if not self.options.demo:
            command = [sys.executable, sys.argv[0], "create_account", "you@example.com", "--staff"]
            lines += [f"  Account  DATA_DIR={shlex.quote(str(self.layout.data_dir))} {shlex.join(command)}"]
        if accounts:
            file = _short(self.layout.demo_file)
            lines += [
                f"  Demo     {file} (every id, password and key)",
                "",
                "Try it:",
                "",
                f"""  KEY=$(grep -ow 'sk_[^"]*' {shlex.quote(file)})""",
                f"""  curl {base}/v1/rows/tasks -H "Authorization: Bearer $KEY\"""",
                f"""  curl -X POST {base}/v1/functions/open-tasks/invoke -H "Authorization: Bearer $KEY\"""",
            ]
        _write("\n".join([*lines, ""]) + "\n")


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _is_ready(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=1) as connection:
            connection.sendall(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n")
            return connection.recv(64).startswith((b"HTTP/1.0 200", b"HTTP/1.1 200"))
    except OSError:
        return False


def _write(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is closed: the service continues
        sys.stdout.write(text)
        sys.stdout.flush()
