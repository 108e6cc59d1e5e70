"""`manage.py serve`: the web server alone; `manage.py up` starts it with the last options."""

import gc
import logging
import multiprocessing
import os
import signal
import socket
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from platform_site.checks import require_readable_settings
from platform_site.embedded import minimum_versions
from platform_site.embedded.launch import die_with_parent
from platform_site.embedded.sockets import default_workers, listen, number_of_workers, port_number
from platform_site.management.commands import migrate
from platform_site.observability import metrics
from platform_site.server.serve import serve

logger = logging.getLogger("platform.start")


class Command(BaseCommand):
    help = "Serve HTTP until SIGTERM; SIGHUP replaces the workers one by one. See docs/how-to/deployment.md."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="IP address to listen on (default 127.0.0.1)")
        parser.add_argument("--port", type=port_number, default=8000, help="default 8000; 0: a free one")
        parser.add_argument(
            "--workers", type=number_of_workers, default=default_workers(), help="processes (default %(default)s)"
        )
        parser.add_argument("--preload", action="store_true", help="load the code once, not at each worker's start")
        parser.add_argument("--fds", help="listening sockets that were inherited, instead of host, port and workers")
        parser.add_argument("--prepare", action="store_true", help="migrate first, and preload")
        parser.add_argument("--demo", action="store_true", help="with --prepare: complete the demo")

    def handle(self, *args: Any, **options: Any) -> None:
        require_readable_settings()
        try:
            if options["fds"]:
                listeners = [socket.socket(fileno=int(number)) for number in options["fds"].split(",")]
            else:
                listeners = listen(options["host"], options["port"], options["workers"])
        except OSError as error:
            raise CommandError(f"Cannot listen on {options['host']}:{options['port']}: {error.strerror}") from error
        metrics.reset()
        metrics.open_metrics_file()
        if options["prepare"]:
            self._prepare(with_demo=options["demo"])
        self._check_versions()
        gc.enable()  # `manage.py` has switched it off
        serve(listeners, preload=options["preload"] or options["prepare"])

    def _check_versions(self) -> None:
        """Refuse vulnerable servers in production; elsewhere log them."""
        problems = minimum_versions.problems()
        connections.close_all()  # forked processes must not share connections
        if problems and settings.PRODUCTION:
            raise CommandError(" ".join(problems))
        for problem in problems:
            logger.error(problem)

    def _prepare(self, *, with_demo: bool) -> None:
        # In a child process: forked workers would keep the memory that migrations use.
        child = multiprocessing.get_context("fork").Process(target=self._fill_databases, args=(os.getpid(), with_demo))
        child.start()
        child.join()
        if child.exitcode:
            raise SystemExit(1)  # it has printed the reason

    def _fill_databases(self, parent: int, with_demo: bool) -> None:
        from platform_site import demo

        die_with_parent(parent, signal.SIGTERM)
        try:
            migrate.apply_migrations(self.stdout)
        except CommandError as error:
            raise SystemExit(str(error)) from None
        if with_demo:
            demo.complete(settings.LAYOUT, base_url=settings.BASE_URL)
