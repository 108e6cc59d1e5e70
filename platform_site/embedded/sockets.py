import socket
from typing import Final

from platform_site.cli.argument_types import whole_number
from platform_site.embedded.cores import cores

BACKLOG: Final = 1024


def listen(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` sockets of one port, which share connections. Raises OSError: EADDRINUSE."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With SO_REUSEPORT, other processes of this user could listen on the same port. The first socket is bound without
    # it, which fails if the port has any listener.
    with socket.create_server((host, port), family=family) as first:
        port = first.getsockname()[1]
    return [socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=True) for _ in range(count)]


port_number: Final = whole_number(0, 65_535)
number_of_workers: Final = whole_number(1, 1000)

MAX_BY_DEFAULT: Final = 32


def default_workers() -> int:
    """One per core, and two at least: one serves while the other is replaced."""
    return min(max(2, cores()), MAX_BY_DEFAULT)
