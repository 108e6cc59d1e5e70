"""The sockets of the service: one for each web worker, all of one address, made before anything else starts."""

import socket
from typing import Final

from platform_site.cli.argument_types import whole
from platform_site.embedded.cores import cores

BACKLOG: Final = 1024


def listen(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` listening sockets among which the kernel spreads the connections; port 0 finds a free one.

    Raises OSError: EADDRINUSE if anybody else listens there, another service of ours included.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Sockets that share a port would share it with every other process of this user that asks for it so. The first is
    # bound without asking, which fails if the port has any listener.
    with socket.create_server((host, port), family=family) as first:
        port = first.getsockname()[1]
    return [socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=True) for _ in range(count)]


port_number: Final = whole(0, 65_535)
"""For argparse: a port, or 0 for a free one."""
number_of_workers: Final = whole(1, 1000)
"""For argparse."""

MOST_BY_DEFAULT: Final = 32


def default_workers() -> int:
    """Two for each core: while one waits for PostgreSQL another runs. On machines of more than 16
    cores somebody should choose: each process has its connections to PostgreSQL and keeps functions warm."""
    return min(2 * cores(), MOST_BY_DEFAULT)
