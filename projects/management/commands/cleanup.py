"""`manage.py cleanup`: runs the cleanup jobs now. `--check` only lists what would be dropped and what is missing, for
example after a restore. `--drop` drops an orphaned schema."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from accounts import audit
from platform_site.background.periodic import all_jobs
from projects import tasks
from projects.provisioning import orphaned_rows, orphaned_schemas, schemas


class Command(BaseCommand):
    help = "Finish interrupted deletions, and remove schemas and rows that no environment owns."

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "--check",
            action="store_true",
            help="change nothing; list schemas that would be dropped and environments that have none, exit 1 if any",
        )
        what.add_argument(
            "--drop",
            metavar="ENV",
            help="drop the orphaned schema of this environment (env_…), which the control database does not have",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["check"]:
            self._check()
            return
        if options["drop"]:
            self._drop(options["drop"])
            return
        ours = [job for job in all_jobs() if job.function in (tasks.finish_and_clean, tasks.remove_orphaned_rows)]
        if all([job.run() for job in ours]):  # a list, so that the second runs even if the first does not
            self.stdout.write("Done.", self.style.SUCCESS)
        else:
            self.stdout.write("Another process is running the cleanup. Try again when it has ended.")

    def _check(self) -> None:
        differences = 0
        for cluster in settings.REGION_DATABASES:
            try:
                without_owner, without_schema = schemas.compare(cluster)
                never_owned = schemas.being_created(without_owner, cluster)
                left = sorted(set(orphaned_rows.find(cluster)))
            except Error as error:
                raise CommandError(f"{cluster} cannot be compared: {type(error).__name__}.") from None
            for environment_id in without_owner:
                state = "dropped by the next cleanup" if environment_id in never_owned else "kept until cleanup --drop"
                self.stdout.write(f"{cluster}  {environment_id}  a schema that no environment owns: {state}")
            for environment_id in without_schema:
                self.stdout.write(f"{cluster}  {environment_id}  an environment without its schema: delete it")
            for environment_id in left:
                self.stdout.write(
                    f"{cluster}  {environment_id}  rows of a deleted environment: removed by the next cleanup"
                )
            differences += len(without_owner) + len(without_schema) + len(left)
        if differences:
            raise CommandError(
                f"The control database and the regions differ in {differences}. If one of them was restored, restore "
                "the others to the same moment before a worker is started."
            )
        self.stdout.write(self.style.SUCCESS("Every environment has its schema, and every schema its environment."))

    def _drop(self, environment_id: str) -> None:
        failed = ""
        for cluster in settings.REGION_DATABASES:
            try:
                orphaned_schemas.drop(environment_id, cluster, actor=audit.SYSTEM)
            except orphaned_schemas.NotOrphaned:
                continue
            except schemas.SchemaBusy:
                raise CommandError(f"{cluster}: another process changes this schema. Try again.") from None
            except Error as error:  # it may be in another region
                failed += f" {cluster}: {type(error).__name__}, try again."
                continue
            self.stdout.write(f"{cluster}  {environment_id}  dropped")
            return
        raise CommandError(f"No region has an orphaned schema of {environment_id}.{failed}")
