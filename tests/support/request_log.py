"""The request log of this process, written when a test says so."""

from django.conf import settings

from platform_site.request_log import recording
from platform_site.request_log.models import LogEntry
from platform_site.request_log.writer import Writer


class Log:
    """The writers of this process, told when to write."""

    def __init__(self) -> None:
        recording.queues.update({using: recording.Queue() for using in ("default", *settings.REGION_DATABASES)})
        self.writers = {using: Writer(using, queue) for using, queue in recording.queues.items()}

    def written(self) -> list[LogEntry]:
        """All entries, the oldest first, once everything recorded has been written."""
        for writer in self.writers.values():
            writer.write()
        return [entry for using in recording.queues for entry in LogEntry.objects.using(using).order_by("at", "id")]
