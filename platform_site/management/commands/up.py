"""Lists `manage.py up` in Django's help; `manage.py` runs `platform_site.embedded.up` directly."""

import argparse

from django.core.management.base import BaseCommand

from platform_site.embedded import up


class Command(BaseCommand):
    help = "Start everything in this terminal: PostgreSQL, Valkey, web, worker, and a demo to try."
    requires_system_checks = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        up.add_arguments(parser)
