"""`manage.py config`: the configuration of an environment. Results go to standard output, messages to standard error.
Exit codes: 0 done, 1 refused, 3 `plan --check` found a difference."""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from typing import Any, Final

from django.core.management.base import CommandError

from accounts.management.terminal import ENVIRONMENT, environment_ref_named
from functions.execution.run_as import restore_caller
from platform_site.cli import base
from platform_site.cli.base import escaped, refused
from platform_site.config import current, service
from platform_site.config.views import ApplyResponse, PlanResponse
from platform_site.http import bodies
from platform_site.identity import ids
from platform_site.identity.callers import Caller, EnvironmentRef
from rows.migrate import service as schema_service
from rows.schema.model import InvalidDocument

_DIFFERS: Final = 3
_EXAMPLES: Final = """
A plan can be applied for an hour, by its author alone: --as names a member of the project or a server key of the
environment, whose permissions count. Functions with a schedule or events run as that caller from then on.

examples:
  manage.py config show env_01k… > config.json                       save the configuration as it is now
  manage.py config plan env_01k… config.json --as usr_01k…           what would change
  manage.py config plan env_01k… config.json --as usr_01k… --check   exit with 3 if anything would (for CI)
  manage.py config plan env_01k… --from env_01m… --as usr_01k…       merge another environment
  manage.py config plan env_01k… --version cfg_01k… --as usr_01k…    go back to an earlier version
  manage.py config apply env_01k… pln_01k… --as usr_01k… --confirm "drop table notes"
  manage.py config apply env_01k… pln_01k… --as usr_01k… --theirs functions.hello.source
"""
_MARKS: Final = {"add": "+", "change": "~", "remove": "-", "trust": "!"}
_AUTHOR: Final = "who plans and applies: usr_… of a member, or key_… of the environment"


class Command(base.Command):
    help = "Show, plan and apply the configuration of an environment: schema, functions, webhooks, sign-in, origins."
    epilog = _EXAMPLES

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", metavar="show|plan|apply", required=True)
        show = verbs.add_parser("show", help="print the configuration")
        show.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        known = ",".join(current.PARTS)
        show.add_argument("--parts", default=known, metavar="PARTS", help=f"some of {known}")

        plan = verbs.add_parser("plan", help="list what would change, and store the plan for an hour")
        plan.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        plan.add_argument("file", metavar="FILE", nargs="?", help="the document, JSON in UTF-8; - reads standard input")
        plan.add_argument("--from", dest="source", metavar="ENV", help="merge this environment instead")
        plan.add_argument("--version", dest="config_version", metavar="CFG", help="go back to this version instead")
        plan.add_argument(
            "--include", action="append", default=[], metavar="PATH",
            help="a part or path whose access settings are merged too; repeatable",
        )  # fmt: skip
        plan.add_argument("--check", action="store_true", help=f"exit with {_DIFFERS} if anything would change")

        apply = verbs.add_parser("apply", help="apply a plan: completely or not at all")
        apply.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        apply.add_argument("plan", metavar="PLAN", help="pln_…")
        apply.add_argument(
            "--confirm", action="append", default=[], metavar="NAME",
            help="a change to confirm, by the name that `plan` gives it; repeatable",
        )  # fmt: skip
        for verb in (plan, apply):
            verb.add_argument("--as", dest="caller", metavar="ID", required=True, help=_AUTHOR)
            verb.add_argument("--json", action="store_true", help="print what the API returns")
            for side, meaning in (("ours", "the target stays"), ("theirs", "the source wins")):
                verb.add_argument(
                    f"--{side}", action="append", default=[], metavar="PATH",
                    help=f"a conflict in which {meaning}; repeatable",
                )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        verb: Callable[..., None] = getattr(self, options["verb"])
        environment = environment_ref_named(options["environment"])
        try:
            verb(environment, options)
        except InvalidDocument as error:
            raise refused("The schema was refused.", {each.field: each.message for each in error.errors}) from None
        except schema_service.Unconfirmed as error:
            raise refused("This would lose data.", dict.fromkeys(error.operations, "not confirmed")) from None

    def show(self, environment: EnvironmentRef, options: dict[str, Any]) -> None:
        parts = options["parts"].split(",")
        if unknown := [part for part in parts if part not in current.PARTS]:
            raise CommandError(f"There is no part {escaped(unknown[0])}: name some of {', '.join(current.PARTS)}.")
        found = current.read(environment, parts)
        self.say(f"{environment.environment_name} ({environment.environment_id}): {current.version_of(found)}")
        self.stdout.write(json.dumps(current.with_sources(environment, found), indent=2, ensure_ascii=False))

    def plan(self, environment: EnvironmentRef, options: dict[str, Any]) -> None:
        chosen = [options[name] for name in ("file", "source", "config_version")]
        if sum(each is not None for each in chosen) != 1:
            raise CommandError("Name one of FILE, --from and --version.")
        caller, environment = _caller(options["caller"], environment)
        if options["source"] is not None:
            source = environment_ref_named(options["source"]).environment_id
            planned = service.plan_merge(
                environment, source, include=options["include"], resolve=_resolved(options), caller=caller
            )
        elif options["include"] or _resolved(options):
            raise CommandError("--include, --ours and --theirs belong to a merge: --from names its source.")
        elif options["config_version"] is not None:
            planned = service.plan_version(environment, options["config_version"], caller)
        else:
            planned = service.plan_document(environment, _document(options["file"]), caller)
        shown = PlanResponse(planned).data
        if options["json"]:
            self.stdout.write(json.dumps(shown, ensure_ascii=False))
        else:
            self._show(shown)
        if options["check"] and (planned.plan.changes or planned.conflicts):
            sys.exit(_DIFFERS)

    def apply(self, environment: EnvironmentRef, options: dict[str, Any]) -> None:
        caller, environment = _caller(options["caller"], environment)
        outcome = service.apply(
            environment, options["plan"], confirm=options["confirm"], resolve=_resolved(options), urls={}, caller=caller
        )
        if options["json"]:
            self.stdout.write(json.dumps(ApplyResponse(outcome).data))
        elif outcome.status == "applied":
            self.say(f"{outcome.plan} is applied: {outcome.version}.", self.style.SUCCESS)
        else:
            self.say(f"{outcome.plan} is applied; sign-in and origins follow within two minutes.", self.style.WARNING)

    def _show(self, shown: Mapping[str, Any]) -> None:
        for change in shown["changes"]:
            style = self.style.ERROR if change["destructive"] else str
            self.say(f"{_MARKS[change['kind']]} {change['operation'] or change['path']}", style)
            for statement in change["sql"]:
                self.say(f"      {statement};")
        for lock in shown["locks"]:
            work = " and ".join(lock["work"]) or "catalog only"
            self.say(f"  locks {lock['table']}: blocks {lock['blocks']} ({work}, {lock['rows']} rows)")
        if shown["locked_ms"]:
            self.say(f"  The locks are kept for about {shown['locked_ms'] / 1000:.1f} s.")
        for conflict in shown["conflicts"]:
            self.say(f"? {conflict['path']}: both sides changed it (--ours, --theirs)", self.style.WARNING)
            for side in ("base", "ours", "theirs"):
                self.say(f"      {side}: {json.dumps(conflict[side], ensure_ascii=False)[:500]}")
        for missing in shown["missing_secrets"]:
            self.say(f"! {missing} is not set.", self.style.WARNING)
        for found in shown["warnings"]:
            self.say(f"! {found['field']}: {found['message']}", self.style.WARNING)
        if not shown["changes"] and not shown["conflicts"]:
            self.say("Nothing would change.", self.style.SUCCESS)
        for name in shown["confirm"]:
            self.say(f'To confirm: --confirm "{name}"')
        self.stdout.write(shown["plan"])


def _caller(caller_id: str, environment: EnvironmentRef) -> tuple[Caller, EnvironmentRef]:
    kind = "key" if ids.matches("key", caller_id) else "account"
    if found := restore_caller(kind, caller_id, environment.environment_id):
        return found
    raise CommandError(f"{escaped(caller_id)} is neither a member of the project nor a key of this environment.")


def _resolved(options: Mapping[str, Any]) -> dict[str, Any]:
    if both := sorted({*options["ours"]} & {*options["theirs"]}):
        raise CommandError(f"Both --ours and --theirs name {escaped(', '.join(both))}.")
    return dict.fromkeys(options["ours"], "ours") | dict.fromkeys(options["theirs"], "theirs")


def _document(name: str) -> dict[str, Any]:
    found = bodies.read(base.read_file(name), long_floats="refused")
    if not isinstance(found, dict):
        raise CommandError(f"{name} does not contain a JSON object.")
    return found
