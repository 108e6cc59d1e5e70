from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from accounts import audit
from projects import services
from projects.errors import NoSuchProject


class Command(BaseCommand):
    help = "Resume a suspended project: it accepts calls again, and deliveries, queued runs and emails continue."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("project", metavar="PROJECT", help="prj_…")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            was_suspended = services.resume_project(options["project"], actor=audit.SYSTEM)
        except NoSuchProject:
            raise CommandError(f"There is no project {options['project']}.") from None
        state = "is no longer suspended" if was_suspended else "was not suspended"
        self.stdout.write(f"{options['project']} {state}.")
