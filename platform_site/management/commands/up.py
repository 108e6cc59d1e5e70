"""Lists `manage.py up` in Django's help; `manage.py` runs `platform_site.embedded.up` directly."""

import argparse
from typing import Any

from django.core.management import execute_from_command_line
from django.core.management.base import BaseCommand

from platform_site.embedded import up
from platform_site.server.application import application


class Command(BaseCommand):
    help = "Start everything in this terminal: PostgreSQL, Valkey, web, worker, and a demo to try."
    requires_system_checks = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        up.add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        raise SystemExit(up.run(argparse.Namespace(**options), application.load, execute_from_command_line))
