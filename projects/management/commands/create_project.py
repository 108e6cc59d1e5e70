from argparse import ArgumentParser
from typing import Any

from accounts import audit
from accounts.management import terminal
from platform_site.cli import base
from projects import services
from projects.api.serializers import NewProject
from projects.models import Plan, Region


class Command(base.Command):
    help = "Create a project with its development and production environments and print their ids."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="1-64 characters")
        parser.add_argument("--owner", required=True, metavar="EMAIL", help="the platform account that owns it")
        parser.add_argument(
            "--region", choices=Region.values, default=Region.US_EAST_1.value, help="default: us-east-1"
        )
        parser.add_argument("--plan", choices=Plan.values, default=Plan.FREE.value, help="its limits (default: free)")

    def handle(self, *args: Any, **options: Any) -> None:
        owner = terminal.account(options["owner"])
        values = terminal.validated_options(NewProject, options)
        project = services.create_project(account_id=owner.pk, actor=audit.SYSTEM, **values)
        self.stdout.write(f"project      {project.pk}  {project.region}")
        for environment in project.environments.order_by("name"):
            self.stdout.write(f"{environment.name:12} {environment.pk}")
