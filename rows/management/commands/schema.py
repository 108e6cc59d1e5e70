"""`manage.py schema`: the schema of an environment. Documents and JSON go to standard output, messages to standard
error. Exit codes: 0 done, 1 refused, 3 `plan --check` found a difference."""

import json
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterable
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import Error as DatabaseError

from accounts import audit
from accounts.management.terminal import ENVIRONMENT, environment_ref_named, validated
from platform_site.cli import base
from platform_site.cli.argument_types import whole_number
from platform_site.cli.base import confirmed_by_name, counted
from platform_site.http import bodies
from platform_site.http.fields import timestamp
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import sqlstates
from projects.errors import NoSuchEnvironment
from rows.api.schema_serializers import SchemaChange
from rows.migrate import concurrent_indexes
from rows.migrate import service as schema_service
from rows.migrate import versions as schema_versions
from rows.migrate.apply import Operation, StatementTimeout
from rows.migrate.service import Outcome
from rows.models import SchemaVersion
from rows.schema.model import InvalidDocument

_DIFFERS: Final = 3
_EXAMPLES: Final = """
examples:
  manage.py schema show env_01k…  > schema.json     save the document as it is now
  manage.py schema plan env_01k…  schema.json       what would change, statement by statement
  manage.py schema plan env_01k…  schema.json --check   exit with 3 if anything would (for CI)
  manage.py schema apply env_01k… schema.json       change it; asks before anything is lost
  manage.py schema apply env_01k… schema.json --confirm "drop column tasks.internal"
  manage.py schema history env_01k…                 all versions
  manage.py schema revert env_01k… 3                back to version 3, as a new version
"""


class Command(base.Command):
    help = "Show, plan, apply and revert the schema document of an environment."
    epilog = _EXAMPLES

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", metavar="show|plan|apply|history|revert", required=True)

        show = verbs.add_parser("show", help="print the document (or that of an earlier version)")
        show.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        show.add_argument("--version", type=int, dest="number", metavar="N", help="an earlier version")
        show.add_argument("--json", action="store_true", help="also print version, time and author")

        plan = verbs.add_parser("plan", help="list what a document would change, and change nothing")
        self._add_document(plan)
        plan.add_argument("--check", action="store_true", help=f"exit with {_DIFFERS} if anything would change")
        plan.add_argument("--json", action="store_true", help="print the operations as JSON")

        apply = verbs.add_parser("apply", help="apply a document as the environment's schema, completely or not at all")
        self._add_document(apply)
        self._add_change(apply)

        history = verbs.add_parser("history", help="list all versions, the newest first")
        history.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        history.add_argument(
            "--limit", type=whole_number(1, 9_999_999), default=20, metavar="N", help="at most this many (default 20)"
        )
        history.add_argument("--json", action="store_true", help="print one JSON object per line")

        revert = verbs.add_parser("revert", help="apply an earlier version's document as a new version")
        revert.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        revert.add_argument("number", type=int, metavar="VERSION", help="the version to go back to; 0 is no tables")
        revert.add_argument(
            "--backfill", action="append", default=[], type=_named_value, metavar="TABLE.COLUMN=JSON",
            help="the value of existing rows for a column that comes back not null; again for each",
        )  # fmt: skip
        self._add_change(revert)

    @staticmethod
    def _add_document(parser: ArgumentParser) -> None:
        parser.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        parser.add_argument("file", metavar="FILE", help="the document, JSON in UTF-8; - reads standard input")

    @staticmethod
    def _add_change(parser: ArgumentParser) -> None:
        parser.add_argument(
            "--confirm", action="append", default=[], metavar="OPERATION",
            help='an operation that may lose data, by the name that `plan` gives it; repeatable',
        )  # fmt: skip
        parser.add_argument("--if-version", type=int, metavar="N", help="apply only if the schema is at this version")
        parser.add_argument("--no-input", action="store_true", help="never ask; what is not confirmed is refused")
        parser.add_argument("--no-indexes", action="store_true", help="leave indexes of large tables to the workers")
        parser.add_argument("--json", action="store_true", help="print the outcome as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        verb: Callable[..., None] = getattr(self, options["verb"])
        try:
            verb(environment_ref_named(options["environment"]), options)
        except InvalidDocument as error:
            wrong = {found.field: found.message for found in error.errors}
            raise base.refused("The document was refused and nothing was changed:", wrong) from None
        except schema_service.Unconfirmed as error:
            lines = "".join(f'\n  --confirm "{name}"' for name in error.operations)
            raise CommandError(
                f"This would lose data. Nothing was changed; to continue, add:{lines}\n"
                "To rename instead, write renamed_from in the document."
            ) from None
        except schema_service.VersionConflict as error:
            raise CommandError(f"The schema is at version {error.version} now. Nothing was changed.") from None
        except schema_versions.NoSuchVersion as error:
            raise CommandError(f"There is no version {error.number}.") from None
        except NoSuchEnvironment:
            raise CommandError("The environment was deleted meanwhile.") from None
        except StatementTimeout as error:
            raise CommandError(f'"{error.step}" took too long. Nothing was changed; make smaller changes.') from None

    def show(self, environment: EnvironmentRef, options: dict[str, Any]) -> None:
        if options["number"] is None:
            state = schema_versions.current(environment)
            record, document = state.record, state.schema.document
        else:
            record = schema_versions.version(environment, options["number"])
            document = record.document
        if options["json"]:
            facts = {
                "version": record.version if record else 0,
                "document": document,
                "applied_at": timestamp(record.applied_at) if record else None,
                "applied_by": record.applied_by if record else None,
            }
            self.stdout.write(json.dumps(facts, ensure_ascii=False))
            return
        said = f"version {record.version}, {_when(record)}" if record else "version 0, no schema was applied yet"
        self.say(f"{environment.environment_name} ({environment.environment_id}): {said}")
        self.stdout.write(json.dumps(document, indent=2, ensure_ascii=False))

    def plan(self, environment: EnvironmentRef, options: dict[str, Any]) -> None:
        outcome = schema_service.rehearse(environment, _document(options["file"]))
        if options["json"]:
            self._print_outcome(outcome)
        else:
            self._show_operations(outcome.operations)
            if not outcome.changed:
                self.say("Nothing would change.", self.style.SUCCESS)
            self._show_warnings(outcome)
        if options["check"] and outcome.changed:
            sys.exit(_DIFFERS)

    def apply(self, environment: EnvironmentRef, options: dict[str, Any]) -> None:
        self._change(environment, _document(options["file"]), options)

    def revert(self, environment: EnvironmentRef, options: dict[str, Any]) -> None:
        document = schema_versions.document_to_revert_to(environment, options["number"], dict(options["backfill"]))
        self._change(environment, document, options, reverts_to=options["number"])

    def history(self, environment: EnvironmentRef, options: dict[str, Any]) -> None:
        records = list(
            schema_versions.history(environment).defer("document_text").order_by("-version")[: options["limit"]]
        )
        if not records and not options["json"]:
            self.say("No schema was applied yet.")
        for record in records:
            if options["json"]:
                facts = {
                    "version": record.version,
                    "applied_at": timestamp(record.applied_at),
                    "applied_by": record.applied_by,
                    "reverts_to": record.reverts_to,
                    "operations": record.operation_names,
                }
                self.stdout.write(json.dumps(facts, ensure_ascii=False))
                continue
            back = f", back to {record.reverts_to}" if record.reverts_to is not None else ""
            self.stdout.write(self.style.MIGRATE_HEADING(f"version {record.version}  {_when(record)}{back}"))
            for name in record.operation_names or ["no operations"]:
                self.stdout.write(f"    {name}")

    def _change(
        self, environment: EnvironmentRef, document: object, options: dict[str, Any], *, reverts_to: int | None = None
    ) -> None:
        confirm = list(options["confirm"])
        expected = options["if_version"]
        if not options["no_input"] and not options["json"] and sys.stdin.isatty():
            rehearsed = schema_service.rehearse(environment, document, expected=expected)
            expected = rehearsed.version
            self._show_operations(rehearsed.operations)
            confirm += self._ask(operation for operation in rehearsed.operations if operation.name not in confirm)
        began = time.monotonic()
        outcome = schema_service.change(
            environment,
            document,
            actor=audit.SYSTEM,
            expected=expected,
            confirm=confirm,
            reverts_to=reverts_to,
            no_time_limit=True,
            progress=lambda name: self.say(f"Making the index of a large table, while rows are served: {name}"),
        )
        if outcome.indexes_due and not options["no_indexes"]:
            self.say("Making the indexes of large tables, while rows are served:")
            self._make_indexes(environment, outcome.version)
        if options["json"]:
            self._print_outcome(outcome)
        elif outcome.changed:
            took = time.monotonic() - began
            self.say(f"Version {outcome.version} is applied ({took:.2f} s).", self.style.SUCCESS)
        else:
            self.say(f"Nothing to change: version {outcome.version} is this document.", self.style.SUCCESS)
        if not options["json"]:
            self._show_warnings(outcome)

    def _make_indexes(self, environment: EnvironmentRef, version: int) -> None:
        making = ""

        def say(name: str) -> None:
            nonlocal making
            self.say(f"    {name}")
            making = name

        try:
            concurrent_indexes.make_due(environment, say)
        except DatabaseError as error:
            kind = type(error.__cause__ or error).__name__
            why = f"the index {making} could not be made ({kind}). A worker tries again."
            if sqlstates.sqlstate(error) == sqlstates.TOO_LONG_FOR_AN_INDEX:
                why = f"existing rows have values too long for the index {making} (about 2,700 bytes). It is made when "
                why += "they are shorter."
            raise CommandError(f"Version {version} is applied, but {why}") from None

    def _ask(self, operations: Iterable[Operation]) -> list[str]:
        confirmed = []
        for operation in operations:
            if operation.destructive:
                self.say(f'"{operation.name}" loses data for good. Type it to continue:', self.style.WARNING)
                confirmed_by_name(operation.name, "> ", without_asking=f'--confirm "{operation.name}"')
                confirmed.append(operation.name)
        return confirmed

    def _show_operations(self, operations: Iterable[Operation]) -> None:
        found = list(operations)
        for operation in found:
            mark, style = _mark(self, operation)
            self.say(f"{mark} {operation.name}" + ("    (loses data)" if operation.destructive else ""), style)
            for statement in operation.sql:
                self.say(f"      {statement};")
        if found:
            lossy = sum(operation.destructive for operation in found)
            count = counted(len(found), "operations")
            self.say(f"{count}, {lossy} with loss of data." if lossy else f"{count}.")

    def _show_warnings(self, outcome: Outcome) -> None:
        for found in outcome.warnings:
            self.say(f"! {found.field}: {found.message}", self.style.WARNING)

    def _print_outcome(self, outcome: Outcome) -> None:
        facts = {
            "version": outcome.version,
            "changed": outcome.changed,
            "operations": [operation.as_dict() for operation in outcome.operations],
            "warnings": [found.as_dict() for found in outcome.warnings],
        }
        self.stdout.write(json.dumps(facts, ensure_ascii=False))


def _mark(command: base.Command, operation: Operation) -> tuple[str, Callable[[str], str]]:
    verb = operation.name.partition(" ")[0]
    if operation.destructive:
        return "-", command.style.ERROR
    if verb in ("create", "add"):
        return "+", command.style.SUCCESS
    return ("-" if verb == "drop" else "~"), command.style.WARNING


def _when(record: SchemaVersion) -> str:
    return f"{record.applied_at:%Y-%m-%d %H:%M:%S} UTC by {record.applied_by}"


def _named_value(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        raise ArgumentTypeError(f"write it as TABLE.COLUMN=JSON, not {text}") from None


def _document(name: str) -> object:
    document = bodies.read(base.read_file(name), long_floats="refused")
    return validated(SchemaChange, {"document": document})["document"]
