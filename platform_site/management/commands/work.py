"""`manage.py work`: a Celery worker."""

import gc
import sys
import warnings
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from celery import signals
from celery.beat import EmbeddedService
from django.conf import settings
from django.core.management.base import BaseCommand

from platform_site.celery import app
from platform_site.checks import require_readable_settings
from platform_site.cli.argument_types import whole_number
from platform_site.observability import metrics


def _queues(text: str) -> str:
    """Celery would create an unknown queue."""
    known = [*(route["queue"] for route in settings.CELERY_TASK_ROUTES.values()), settings.CELERY_TASK_DEFAULT_QUEUE]
    named = [name.strip() for name in text.split(",")]
    if not set(named) <= set(known):
        raise ArgumentTypeError(f"must be one or more of {','.join(known)}")
    return ",".join(named)


def _start_beat(**_: Any) -> None:
    """As a thread: a process takes 20 MB, and would not be restarted. The schedule needs no file."""
    beat: Any = EmbeddedService(app, thread=True, scheduler_cls="celery.beat:Scheduler")
    # Without waiting: while Redis is unavailable, beat retries.
    signals.worker_shutdown.connect(lambda **_: beat.service.stop(wait=False), weak=False)
    beat.start()


class Command(BaseCommand):
    """One process with threads: tasks mostly wait. Tasks have deadlines; leases recover the work of a killed worker."""

    help = "Run a worker for the named queues until SIGTERM; tasks that run may end first."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--queues", type=_queues, default="webhooks,functions,default", help="(default %(default)s)"
        )
        parser.add_argument(
            "--concurrency", type=whole_number(1, 1000), default=32, help="threads (default %(default)s)"
        )
        parser.add_argument("--beat", action="store_true", help="also send the tasks of the periodic jobs")

    def handle(self, *args: Any, **options: Any) -> None:
        require_readable_settings()
        metrics.open_metrics_file()
        # Celery warns root of pickled messages; ours are JSON.
        warnings.filterwarnings("ignore", message="You're running the worker with superuser privileges")
        if options["beat"]:
            signals.worker_ready.connect(_start_beat, weak=False)
        gc.collect()
        gc.freeze()
        gc.enable()  # `manage.py` has switched it off
        # Not `app.worker_main`, which imports the shells and completions of all of Celery's commands: 12 MB.
        worker = app.Worker(
            queues=options["queues"].split(","),
            concurrency=options["concurrency"],
            pool_cls="threads",
            loglevel="WARNING",
            quiet=True,
            # Messages between workers, which are not used here.
            without_mingle=True,
            without_gossip=True,
            without_heartbeat=True,
        )
        worker.start()
        sys.exit(worker.exitcode)
