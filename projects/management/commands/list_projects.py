from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.db.models import Q

from platform_site.cli.argument_types import whole_number
from projects.models import Member, Project, Region


class Command(BaseCommand):
    help = (
        "List projects: id, region, plan, state, owner, name; under each its environments: id, status, name. "
        "Words filter the list, as in the console."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "words", nargs="?", help="a project's or environment's id, part of a name, a member's email"
        )
        parser.add_argument("--region", choices=Region.values, help="only projects there")
        parser.add_argument(
            "--limit", type=whole_number(1, 9_999_999), default=100, metavar="N", help="at most this many (default 100)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        found = Project.objects.order_by("-created_at", "-id").prefetch_related("memberships__user", "environments")
        if options["region"]:
            found = found.filter(region=options["region"])
        if words := options["words"]:
            found = found.filter(
                Q(pk=words)
                | Q(environments__pk=words)
                | Q(name__icontains=words)
                | Q(memberships__user__email__iexact=words)
            ).distinct()
        shown = list(found[: options["limit"] + 1])
        if not shown:
            self.stderr.write("No project matches." if words or options["region"] else "There are no projects yet.")
        for project in shown[: options["limit"]]:
            owners = [member.user.email for member in project.memberships.all() if member.role == Member.Role.OWNER]
            state = project.state
            # Owners choose names, which may contain any character: quoted, they stay on one line.
            facts = f"{project.pk}  {project.region:14}  {project.plan:4}  {state:13}"
            self.stdout.write(f"{facts}  {', '.join(owners)}  {project.name!r}")
            if project.suspended_at is not None:
                self.stdout.write(f"    since {project.suspended_at:%Y-%m-%d %H:%M} UTC: {project.suspension_reason!r}")
            for environment in sorted(project.environments.all(), key=lambda each: each.name):
                self.stdout.write(f"    {environment.pk}  {environment.status:9}  {environment.name}")
        if len(shown) > options["limit"]:
            self.stdout.write(f"… and more: --limit {options['limit'] * 10}")
