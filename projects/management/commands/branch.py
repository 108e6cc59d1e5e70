import json
from argparse import ArgumentParser
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import Error as DatabaseError

from accounts import audit
from accounts.management.terminal import ENVIRONMENT, environment_ref_named
from platform_site.cli import base
from platform_site.cli.argument_types import whole_number
from platform_site.cli.base import confirmed_by_name
from platform_site.http.fields import timestamp
from projects import services
from projects.models import Environment, Project

_EXAMPLES: Final = """
examples:
  manage.py branch list prj_01k…
  manage.py branch reset env_01k… --no-input            empty tables, and the functions and webhooks of its source
  manage.py branch reset prj_01k…/preview --data        with the rows of its source
  manage.py branch expire prj_01k…/preview --in-days 7  deleted in a week
  manage.py branch expire prj_01k…/preview --never
"""
_MAX_DAYS: Final = 365


class Command(base.Command):
    help = "List the preview branches of a project, reset one from its source, or set when it is deleted."
    epilog = _EXAMPLES

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", metavar="list|reset|expire", required=True)
        listed = verbs.add_parser("list", help="list the branches of a project")
        listed.add_argument("project", metavar="PROJECT", help="prj_…")
        listed.add_argument("--json", action="store_true", help="print one JSON object per line")

        reset = verbs.add_parser("reset", help="replace what a branch has by a copy of its source")
        reset.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        reset.add_argument("--data", action="store_true", help="copy the rows too; without it the tables are empty")
        reset.add_argument("--no-input", action="store_true", help="do not ask")

        expire = verbs.add_parser("expire", help="set when a branch is deleted")
        expire.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        when = expire.add_mutually_exclusive_group(required=True)
        when.add_argument(
            "--in-days", type=whole_number(1, _MAX_DAYS), metavar="N", help=f"after this many days, at most {_MAX_DAYS}"
        )
        when.add_argument("--never", action="store_true", help="never delete it")

    def handle(self, *args: Any, **options: Any) -> None:
        verb: Callable[..., None] = getattr(self, options["verb"])
        try:
            verb(options)
        except DatabaseError as error:
            raise CommandError(f"The database refused ({type(error).__name__}). Nothing was changed.") from None

    def list(self, options: dict[str, Any]) -> None:
        project = Project.objects.live().filter(pk=options["project"]).first()
        if project is None:
            raise CommandError(f"There is no project {options['project']}.")
        branches = project.environments.live().branches().select_related("parent").order_by("name")
        if not branches and not options["json"]:
            self.stdout.write("There are no preview branches.")
        for branch in branches:
            expires_at = branch.expires_at and timestamp(branch.expires_at)
            source = branch.parent and branch.parent.name
            if options["json"]:
                facts = {"id": branch.pk, "name": branch.name, "source": source, "status": branch.status}
                self.stdout.write(json.dumps(facts | {"expires_at": expires_at}))
                continue
            of = f"of {source}" if source else "without a source"
            until = f", until {expires_at}" if expires_at else ""
            self.stdout.write(f"{branch.pk}  {branch.name}  {of}, {branch.status}{until}")

    def reset(self, options: dict[str, Any]) -> None:
        environment = environment_ref_named(options["environment"])
        if not options["no_input"]:
            self.stderr.write(
                f"The tables, rows, functions and webhooks of {environment.environment_name} are replaced."
            )
            confirmed_by_name(environment.environment_name, "Type its name to continue: ", without_asking="--no-input")
        data = "full" if options["data"] else "none"
        branch = services.reset_branch(environment.environment_id, data=data, actor=audit.SYSTEM)  # type: ignore[arg-type]
        if branch.status == Environment.Status.CREATING:
            self.stderr.write(f"{branch.name} is being reset: a worker copies its rows.", self.style.WARNING)
        else:
            self.stderr.write(f"{branch.name} is reset.", self.style.SUCCESS)

    def expire(self, options: dict[str, Any]) -> None:
        environment = environment_ref_named(options["environment"])
        expires_at = None if options["never"] else datetime.now(UTC) + timedelta(days=options["in_days"])
        services.change_environment(environment.environment_id, expires_at=expires_at, actor=audit.SYSTEM)
        if expires_at is None:
            self.stderr.write(f"{environment.environment_name} does not expire.", self.style.SUCCESS)
        else:
            self.stderr.write(
                f"{environment.environment_name} is deleted at {timestamp(expires_at)}.", self.style.SUCCESS
            )
