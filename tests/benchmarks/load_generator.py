"""The load of the benchmarks: kept connections, one request at a time on each, answers counted and timed. A process of its
own, over raw sockets: the cheapest load that is still HTTP, so that the server is measured.

python -m tests.benchmarks.load_generator PORT SECONDS CONNECTIONS < requests as a JSON array of strings
"""

import json
import selectors
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Load:
    """One run of load. Latencies in milliseconds; `cpu` are the seconds that the load itself took of a processor."""

    count: int
    seconds: float
    p50: float
    p99: float
    statuses: dict[int, int]
    cpu: float

    @property
    def per_second(self) -> float:
        return self.count / self.seconds


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: answers a second, and CPU of the server's processes for one of them, in microseconds."""

    per_second: float
    cpu_us: float

    def __str__(self) -> str:
        return f"{self.per_second:8,.0f}/s  {self.cpu_us:6,.0f} µs CPU"


def hammer(port: int, requests: Sequence[bytes], *, seconds: float = 3.0, connections: int = 16) -> Load:
    """Each connection sends every CONNECTIONS-th request in turn, for that long. Runs in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.load_generator", str(port), str(seconds), str(connections)],
        input=json.dumps([request.decode("latin-1") for request in requests]).encode(),
        capture_output=True,
        cwd=ROOT,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.decode()[-2000:])
    found = json.loads(done.stdout)
    return Load(**{**found, "statuses": {int(status): count for status, count in found["statuses"].items()}})


def measure(server: int, port: int, request: bytes, *, seconds: float = 3.0, connections: int = 16) -> Measured:
    """Hammer the server whose main process is `server`; fails if any answer is not 200."""
    processes = [child for child in psutil.Process(server).children(recursive=True) if "postgres" not in child.name()]
    before = _cpu(processes)
    load = hammer(port, [request], seconds=seconds, connections=connections)
    if set(load.statuses) != {200}:
        raise RuntimeError(f"answers: {load.statuses}")
    return Measured(load.per_second, (_cpu(processes) - before) / load.count * 1e6)


def _cpu(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


class _Client:
    """One connection and its requests."""

    def __init__(self, port: int, requests: Sequence[bytes]) -> None:
        self.requests = requests
        self.at = 0
        self.received = bytearray()
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send()

    def send(self) -> None:
        self.sent_at = time.perf_counter()
        self.socket.sendall(self.requests[self.at % len(self.requests)])
        self.at += 1

    def receive(self) -> tuple[int, float] | None:
        """Status and seconds of an answer that is whole now. Raises RuntimeError if the server hangs up."""
        data = self.socket.recv(262_144)
        if not data:
            raise RuntimeError(f"the server closed a connection after {bytes(self.received[:500])!r}")
        self.received += data
        head = self.received.find(b"\r\n\r\n")
        if head < 0:
            return None
        if not self._is_whole(head):
            return None
        found = int(self.received[9:12]), time.perf_counter() - self.sent_at
        self.received.clear()
        return found

    def _is_whole(self, head: int) -> bool:
        """Whether the body is there, behind headers that end at `head`."""
        at = self.received.find(b"content-length: ", 0, head + 2)
        if at < 0:
            headers = self.received[:head].lower()  # of servers that write `Content-Length`
            if b"\r\ntransfer-encoding: chunked" in headers:
                return self.received.endswith(b"\r\n0\r\n\r\n")
            at = headers.find(b"content-length: ")
        length = int(self.received[at + 16 : self.received.find(b"\r", at)]) if at >= 0 else 0
        return len(self.received) >= head + 4 + length


def run(port: int, seconds: float, connections: int, requests: Sequence[bytes]) -> dict[str, object]:
    selector = selectors.DefaultSelector()
    latencies: list[float] = []
    statuses: Counter[int] = Counter()
    began = time.perf_counter()
    for number in range(connections):
        client = _Client(port, requests[number::connections] or requests)
        selector.register(client.socket, selectors.EVENT_READ, client)
    until = began + seconds
    while time.perf_counter() < until:
        for key, _ in selector.select(1):
            answer = key.data.receive()
            if answer is not None:
                statuses[answer[0]] += 1
                latencies.append(answer[1])
                key.data.send()
    took = time.perf_counter() - began
    latencies.sort()
    return {
        "count": len(latencies),
        "seconds": took,
        "p50": latencies[len(latencies) // 2] * 1000 if latencies else 0.0,
        "p99": latencies[int(len(latencies) * 0.99)] * 1000 if latencies else 0.0,
        "statuses": statuses,
        "cpu": time.process_time(),
    }


if __name__ == "__main__":
    asked = [one.encode("latin-1") for one in json.loads(sys.stdin.buffer.read())]
    print(json.dumps(run(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), asked)))
