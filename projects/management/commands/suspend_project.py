from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from accounts import audit
from platform_site.cli import base
from projects import services
from projects.errors import NoSuchProject


class Command(base.Command):
    help = (
        "Suspend a project: its calls are refused, its deliveries, queued runs and emails wait until "
        "`manage.py resume_project`. Nothing is lost. Repeat it to change the reason."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("project", metavar="PROJECT", help="prj_…")
        parser.add_argument(
            "--reason", required=True, metavar="WORDS", help="shown to the project's members; 1-500 characters"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            project = services.suspend_project(options["project"], reason=options["reason"], actor=audit.SYSTEM)
        except NoSuchProject:
            raise CommandError(f"There is no project {options['project']}.") from None
        self.stdout.write(f"{project.pk} is suspended since {project.suspended_at:%Y-%m-%d %H:%M:%S} UTC.")
