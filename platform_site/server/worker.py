"""A worker process: loads the application, and serves HTTP on an event loop."""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import django
import uvloop
from django.apps import apps
from django.conf import settings

from platform_site.concurrency import server_hints
from platform_site.embedded.launch import die_with_parent
from platform_site.embedded.sockets import BACKLOG
from platform_site.server.http_protocol import HttpServer
from platform_site.server.request_head import Forwarding

if TYPE_CHECKING:
    from platform_site.server.application import Application

logger = logging.getLogger(__name__)

GRACE_SECONDS: Final = 0.5
"""How long a stopping worker still answers."""
FINISH_SECONDS: Final = 330
"""How long it then finishes its requests: a function may run for 300 s."""
MAX_CONNECTIONS: Final = 16_384
"""16 KB each."""
_OTHER_FILES: Final = 512
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""A worker starts with them blocked."""
FULL_COLLECTIONS: Final = 100
"""Collections of the middle generation per full one, which takes 20 ms. By default, every hundredth request waits."""


def work(listener: socket.socket, others: list[socket.socket], ready: Any, parent: int) -> None:
    """Serve until SIGTERM. Sends the time (`time.monotonic`) over the pipe `ready` once it serves."""
    for other in others:  # inherited listeners of other workers
        other.close()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, lambda *_: None)  # a terminal that closes sends it to workers, too
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    die_with_parent(parent, signal.SIGTERM)
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTIONS)
    if not apps.ready:
        django.setup(set_prefix=False)
    from platform_site.server.application import application

    application.load()
    gc.collect()
    gc.freeze()
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    listener.setblocking(False)
    server = HttpServer(loop, Forwarding(settings.TRUSTED_PROXIES), application.handle, _allow_connections())
    loop.run_until_complete(_serve(loop, application, server, listener, ready))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # at once: what daemon threads hold need not be cleaned up


def _allow_connections() -> int:
    """A worker's maximum connections (streams count), and as many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(BACKLOG, soft - _OTHER_FILES)
    return MAX_CONNECTIONS


async def _serve(
    loop: asyncio.AbstractEventLoop, application: "Application", server: HttpServer, listener: socket.socket, ready: Any
) -> None:
    ended = asyncio.Event()

    def stop() -> None:
        """Busy connections close with their response. Closing an idle one now could lose a request."""
        if not server.is_stopping:
            for end in server_hints.on_shutdown:
                end()
            server.stop_listening()
            loop.call_later(GRACE_SECONDS, ended.set)

    application.start(loop)
    await server.start(listener)
    # Only in the running loop: uvloop loses earlier signals.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    ready.send(time.monotonic())
    await ended.wait()
    try:
        await asyncio.wait_for(server.finish(), FINISH_SECONDS)
    except TimeoutError:
        logger.error("a stopping worker ends without having finished its requests", extra={"pid": os.getpid()})
    application.stop()
