"""`manage.py restore`: a backup as a new preview branch, or as the tables of an environment."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import Error

from accounts import audit
from accounts.management.terminal import environment_ref_named
from platform_site.cli import base
from platform_site.cli.base import counted, progress_bar
from platform_site.http.errors import QuotaExceeded
from platform_site.postgres import sqlstates
from projects.api.serializers import NewBranch
from projects.errors import BranchesQuotaReached, NameTaken, NoSuchProject
from rows.management.commands.backup import described
from rows.migrate.apply import LockNotAvailable
from rows.transfer import backup_content, restore
from rows.transfer.backup_content import Content
from rows.transfer.backup_file import Archive, DamagedArchive, UnsupportedFormat
from rows.transfer.restore import NotEmpty

_EPILOG: Final = """
The whole file is compared with its checksums before anything is changed. Then everything is restored, or nothing.

A branch gets everything: versions, rows, webhooks (disabled, with new secrets), functions (secrets by name, unset).
An environment gets the tables and their rows, as its next schema version. It gets webhooks or functions only if it has
none. A backup contains no users: the restored environment has its own.

examples:
  manage.py restore env_01k….zip --branch-of prj_01k… --name before-the-accident
  manage.py restore env_01k….zip --into prj_01k…/production --replace
  manage.py restore env_01k….zip --check
"""


class Command(base.Command):
    help = "Restore a backup of an environment into a new preview branch, or into an environment."
    epilog = _EPILOG

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", metavar="FILE", help="a file that `manage.py backup` wrote")
        where = parser.add_mutually_exclusive_group(required=True)
        where.add_argument("--branch-of", metavar="PROJECT", help="create a branch of this project's production")
        where.add_argument("--into", metavar="ENV", help="the environment: env_…, or prj_…/production")
        where.add_argument("--check", action="store_true", help="only check that the file is complete and undamaged")
        parser.add_argument("--name", help="the new branch's name; with --branch-of")
        parser.add_argument("--replace", action="store_true", help="replace existing tables; with --into")
        parser.add_argument("--no-progress", action="store_true", help="show no progress bar")

    def handle(self, *args: Any, **options: Any) -> None:
        if bool(options["branch_of"]) != bool(options["name"]):
            raise CommandError("--branch-of and --name go together.")
        if options["replace"] and not options["into"]:
            raise CommandError("--replace goes with --into: a branch is always new.")
        if options["name"]:
            _check_name(options["name"])
        path = Path(options["file"])
        try:
            with Archive(path) as archive:
                with progress_bar(self, options, total=archive.size, unit="B", desc="checking") as bar:
                    content = backup_content.verified(archive, bar.update)
                if options["check"]:
                    tables = counted(len(content.schema.tables), "tables")
                    self._say(f"{path} is complete: version {content.version}, {tables}, "
                              f"taken {content.taken_at:%Y-%m-%d %H:%M:%S} UTC of {content.source_id}.")  # fmt: skip
                    return
                with progress_bar(self, options, total=archive.size, unit="B", desc="restoring") as bar:
                    self._restore(content, bar.update, options)
        except DamagedArchive as error:
            raise CommandError(f"{path} is damaged: {error}. Nothing was changed.") from None
        except UnsupportedFormat as error:
            raise CommandError(f"{path} cannot be read: {error}.") from None
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}.") from None

    def _restore(self, content: Content, progress: Any, options: dict[str, Any]) -> None:
        try:
            if options["into"]:
                environment = environment_ref_named(options["into"])
                summary = restore.restore_into(
                    content, environment, replace=options["replace"], actor=audit.SYSTEM, progress=progress
                )
            else:
                environment, summary = restore.restore_as_branch(
                    content, options["branch_of"], options["name"], actor=audit.SYSTEM, progress=progress
                )
        except NotEmpty:
            raise CommandError("The environment has tables. --replace drops them with their rows.") from None
        except NoSuchProject:
            raise CommandError(f"There is no project {options['branch_of']}.") from None
        except NameTaken:
            raise CommandError(f"The project has an environment called {options['name']}.") from None
        except BranchesQuotaReached as error:
            raise CommandError(f"{error} Delete one first.") from None
        except QuotaExceeded as error:
            raise CommandError(f"{error} Nothing was changed.") from None
        except LockNotAvailable:
            raise CommandError("The tables or the schema are in use. Nothing was changed; try again.") from None
        except Error as error:
            if sqlstates.sqlstate(error) in sqlstates.INTERFERED:
                raise CommandError("Other transactions lock what it changes. Nothing was changed; try again.") from None
            raise CommandError(f"PostgreSQL refused ({type(error).__name__}). Nothing was changed.") from error
        self._say(f"{environment.environment_id} ({environment.environment_name}): {described(summary)}.")
        if not summary.is_ready:
            where = f"GET /v1/projects/{environment.project_id}/environments/{environment.environment_id}"
            self.stdout.write(
                "The restore is complete. The branch has the status `creating` until the next periodic job of a "
                f"worker sets it to `ready`: see `status` in {where}."
            )

    def _say(self, text: str) -> None:
        self.stdout.write(self.style.SUCCESS(text))


def _check_name(name: str) -> None:
    read = NewBranch(data={"name": name})
    if not read.is_valid():
        raise CommandError("The name: " + " ".join(str(message) for message in read.errors["name"]))
