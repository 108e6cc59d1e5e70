"""A closed loop of clients over raw sockets: the cheapest load that is still HTTP, so that the server is measured."""

import asyncio
import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Outcome:
    """What one run of load saw. Latencies in seconds, sorted."""

    seconds: float
    latencies: list[float] = field(repr=False)
    statuses: dict[int, int]

    @property
    def requests(self) -> int:
        return len(self.latencies)

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds

    def percentile(self, share: float) -> float:
        """Milliseconds."""
        return self.latencies[min(self.requests - 1, int(self.requests * share))] * 1000


class _Client(asyncio.Protocol):
    """Sends the same request again as soon as the answer is whole."""

    def __init__(self, request: bytes, until: float, latencies: list[float], statuses: dict[int, int]) -> None:
        self.request, self.until, self.latencies, self.statuses = request, until, latencies, statuses
        self.received = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport
        self._send()

    def _send(self) -> None:
        self.sent_at = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        length = 0
        for line in head.split(b"\r\n"):
            if line[:15].lower() == b"content-length:":
                length = int(line[15:])
        if len(body) < length:
            return
        now = time.perf_counter()
        status = int(head[9:12])
        self.latencies.append(now - self.sent_at)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.received = b""
        if now < self.until:
            self._send()
        else:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


def get(port: int, path: str, *, token: str | None = None, clients: int = 16, seconds: float = 2.0) -> Outcome:
    """Ask for `path` with that many clients for that long."""
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{authorization}Accept: */*\r\n\r\n".encode()
    latencies: list[float] = []
    statuses: dict[int, int] = {}

    async def run() -> float:
        began = time.perf_counter()
        made = [
            (await asyncio.get_running_loop().create_connection(
                lambda: _Client(request, began + seconds, latencies, statuses), "127.0.0.1", port
            ))[1]
            for _ in range(clients)
        ]  # fmt: skip
        await asyncio.wait_for(asyncio.gather(*(client.done for client in made)), seconds + 30)
        return time.perf_counter() - began

    took = asyncio.run(run())
    return Outcome(took, sorted(latencies), statuses)
