"""The database backend named in settings.

Django's health check costs a round trip on each request. A server that stopped, or terminated this backend, has
already sent its farewell or closed the socket, so an idle connection whose socket is readable is dead or has something
to say that nobody asked for. `poll` answers that in two microseconds and without the network (docs/performance.md). A
peer that vanished without a word is met by TCP keepalives, and by one retry of reads in `platform_site.api.handler`.
"""

import select
from typing import Any

from django.db.backends.postgresql import base

from platform_site.postgres.commits import note_commit


class DatabaseWrapper(base.DatabaseWrapper):
    def is_usable(self) -> bool:
        """Whether the kept connection can serve another request. Called by Django once per request and after errors."""
        connection: Any = self.connection
        if connection is None or connection.closed:
            return False
        try:
            poll = select.poll()
            poll.register(connection.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
            return not poll.poll(0)
        except (OSError, ValueError):
            return False

    def _commit(self) -> None:
        super()._commit()  # type: ignore[misc]  # BaseDatabaseWrapper has it, django-stubs has not
        note_commit()
