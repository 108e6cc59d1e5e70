"""Which server, how many processes: `python -m tests.benchmarks.server [SECONDS]`. By hand, on a quiet machine.

Every variant serves the same two views (one does nothing, one waits half a millisecond outside of Python) to 16 clients
in the same run. The numbers in docs/explanation/performance.md come from here.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.benchmarks.load_generator import ROOT, measure

GRANIAN = [
    "-m",
    "granian",
    "--no-log",
    "--http",
    "1",
    "--no-ws",
    "--interface",
    "wsgi",
    "tests.benchmarks.wsgi:application",
]
OURS = ["manage.py", "serve", "--preload"]
VARIANTS = {
    "WSGI, 2 workers x 1 thread": [*GRANIAN, "--workers", "2", "--blocking-threads", "1"],
    "WSGI, 4 x 1": [*GRANIAN, "--workers", "4", "--blocking-threads", "1"],
    "WSGI, 2 x 16": [*GRANIAN, "--workers", "2", "--blocking-threads", "16"],
    "bridge, 2 workers": [*OURS, "--workers", "2"],
    "bridge, 4 workers": [*OURS, "--workers", "4"],
    "bridge, 6 workers": [*OURS, "--workers", "6"],
}


@contextmanager
def running(command: list[str]) -> Iterator[tuple[int, int]]:
    """A server of one variant: its process id and its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.benchmarks.bare_settings"}
    process = subprocess.Popen([sys.executable, *command, "--port", str(port)], cwd=ROOT, env=environment)
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        time.sleep(2)  # all of the workers
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(20)


def main(seconds: float) -> None:
    for name, command in VARIANTS.items():
        try:
            with running(command) as (process, port):
                for path in ("bare", "wait"):
                    request = f"GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
                    measure(process, port, request, seconds=0.5)
                    print(f"{name:32} {path:5} {measure(process, port, request, seconds=seconds)}", flush=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{name:32} {error}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0)
