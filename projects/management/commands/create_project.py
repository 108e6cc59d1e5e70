"""`manage.py create_project NAME --owner E-MAIL`: a project with both environments, as over the API."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from accounts import audit
from accounts.models import User
from projects import services
from projects.api.serializers import NewProject
from projects.errors import NoSuchAccount, QuotaReached
from projects.models import Plan, Region


class Command(BaseCommand):
    help = "Make a project with its development and production environments and print their ids."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="1-64 characters")
        parser.add_argument("--owner", required=True, metavar="EMAIL", help="the platform account that owns it")
        parser.add_argument("--region", choices=Region.values, default=Region.US_EAST_1.value)
        parser.add_argument("--plan", choices=Plan.values, default=Plan.FREE.value)

    def handle(self, *args: Any, **options: Any) -> None:
        read = NewProject(data={field: options[field] for field in ("name", "region", "plan")})
        if not read.is_valid():
            raise CommandError(" ".join(str(message) for messages in read.errors.values() for message in messages))
        owner = User.objects.with_email(None, options["owner"]).first()
        try:
            project = services.create_project(
                account_id=owner.pk if owner else "", actor=audit.SYSTEM, **read.validated_data
            )
        except NoSuchAccount:
            raise CommandError(f"No account has the email {options['owner']}.") from None
        except QuotaReached as error:
            raise CommandError(f"The account has {error.limit} projects on this plan, and may have no more.") from None
        self.stdout.write(f"project      {project.pk}  {project.region}")
        for environment in project.environments.order_by("name"):
            self.stdout.write(f"{environment.name:12} {environment.pk}")
