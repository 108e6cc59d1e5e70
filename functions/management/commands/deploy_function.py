"""Results go to standard output (JSON with `--json`), messages to standard error. Exit codes: 0 done, 1 refused."""

import json
import os
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any, Final

from django.core.management.base import CommandError

from accounts import audit
from accounts.management.terminal import ENVIRONMENT, environment_ref_named, validated
from functions import directory
from functions.api import serializers
from functions.deploy import service as deploy_service
from functions.deploy import trial
from functions.management.callers import caller_named
from functions.triggers import event_subscriptions
from platform_site.cli import base
from platform_site.identity.callers import Caller, EnvironmentRef

_EXAMPLES: Final = """
The module is loaded once in the sandbox before anything changes; a source that does not load is refused with line and
column. Settings and secrets that are not named stay as they are (a new function gets the defaults). Without FILE no
version is created, and only the named settings change. A schedule, events and inbound endpoints run the function as
--as, checked at each run; without --as that stays as it is.

examples:
  manage.py deploy_function env_01k… sum sum.ts
  manage.py deploy_function prj_01k…/production mail mail.ts --timeout-ms 8000 --allow-host api.example.com
  API_TOKEN=… manage.py deploy_function env_01k… mail --secret API_TOKEN
  manage.py deploy_function env_01k… report report.ts --schedule "0 6 * * mon-fri" --as key_01k…
  manage.py deploy_function env_01k… welcome welcome.ts --on auth.user.created --as key_01k…
  manage.py deploy_function env_01k… mail mail.ts --check      only check it (for CI)
  esbuild … | manage.py deploy_function env_01k… mail - --json
"""
_ANYBODY: Final = "users, server keys and members"
"""The default of `invoke`; `public` is everyone."""


def _secret(text: str) -> tuple[str, str]:
    value = os.environ.get(text)
    if value is None:
        raise ArgumentTypeError(f"the environment has no variable {text} to read the value from")
    return text, value


class Command(base.Command):
    help = "Deploy a module as a function's new, active version, or change only its settings."
    epilog = _EXAMPLES

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        parser.add_argument("name", metavar="NAME", help="of the function: a-z, 0-9, _ and -, beginning with a letter")
        parser.add_argument(
            "file",
            metavar="FILE",
            nargs="?",
            help="a module in TypeScript or JavaScript; - reads standard input; without it no version is created",
        )
        parser.add_argument("--timeout-ms", type=int, metavar="N", help="timeout of a call in ms (default 5000)")
        parser.add_argument("--memory-mb", type=int, metavar="N", help="heap limit in MB (default 128)")
        hosts = parser.add_mutually_exclusive_group()
        hosts.add_argument(
            "--allow-host", action="append", metavar="HOST",
            help="ctx.fetch may call this host (or host:port); repeatable",
        )  # fmt: skip
        hosts.add_argument("--no-hosts", action="store_true", help="ctx.fetch may no longer call any host")
        parser.add_argument(
            "--invoke",
            choices=["anybody", "user", "key", "public"],
            help="who may invoke it (default: users, server keys and members; public is everyone)",
        )
        parser.add_argument("--attempts", type=int, metavar="N", help="attempts of a queued run (default 1)")
        schedules = parser.add_mutually_exclusive_group()
        schedules.add_argument(
            "--schedule", metavar="CRON", help='schedule, in UTC: "*/15 * * * *", @daily, …; needs --as'
        )
        schedules.add_argument("--no-schedule", action="store_true", help="remove the schedule")
        events = parser.add_mutually_exclusive_group()
        events.add_argument(
            "--on", action="append", metavar="EVENT",
            help="an event that triggers it: tasks.insert, tasks.*, auth.user.created, …; repeatable; "
            "needs --as",
        )  # fmt: skip
        events.add_argument("--no-events", action="store_true", help="remove the event triggers")
        parser.add_argument("--as", dest="caller", metavar="ID", help="run-as identity of its triggers: key_… or usr_…")
        parser.add_argument(
            "--secret", action="append", type=_secret, default=[], metavar="NAME",
            help="set this secret to the value of the environment variable NAME; repeatable",
        )  # fmt: skip
        parser.add_argument("--unset-secret", action="append", default=[], metavar="NAME", help="remove this secret")
        parser.add_argument("--check", action="store_true", help="load the module in the sandbox, without deploying it")
        parser.add_argument("--json", action="store_true", help="print the function as the API shows it")

    def handle(self, *args: Any, **options: Any) -> None:
        environment = environment_ref_named(options["environment"])
        name: str = options["name"]
        if not directory.NAME.fullmatch(name):
            raise CommandError(directory.NAME_RULE)
        takes = serializers.Configuration if options["file"] is None else serializers.Deployment
        values = validated(takes, _body(options))
        runs_as = _runs_as(options, environment)
        if options["file"] is None and (options["check"] or not (values or runs_as)):
            raise CommandError("Name the module's FILE, or a setting to change.")
        trial.try_out(environment, name, values)
        if options["check"]:
            self.say("The module loads. Nothing was deployed.", self.style.SUCCESS)
            return
        if options["file"] is None:
            function = deploy_service.configure(environment, name, values, actor=audit.SYSTEM, runs_as=runs_as)
            done = f"{name} is changed; version {function.active_version} stays active."
        else:
            function, is_new = deploy_service.deploy(environment, name, values, actor=audit.SYSTEM, runs_as=runs_as)
            what = " (a new function)" if is_new else ""
            done = f"{name} version {function.active_version} is deployed{what}."
        shown = serializers.FunctionDetail(function).data
        if options["json"]:
            self.stdout.write(json.dumps(shown))
            return
        self.say(done, self.style.SUCCESS)
        hosts = ", ".join(function.allowed_hosts) or "none"
        self.say(f"  timeout {function.timeout_ms} ms, memory {function.memory_mb} MB, hosts {hosts}")
        self.say(f"  invoked by {function.invoke or _ANYBODY}, secrets {', '.join(shown['secrets']) or 'none'}")
        if shown["unset_secrets"]:
            self.say(f"  no value here: secrets {', '.join(shown['unset_secrets'])}")
        if function.next_run_at is not None:
            when = f"{function.next_run_at:%Y-%m-%d %H:%M} UTC"
            self.say(f"  schedule: {function.schedule}, next at {when}, as {function.scheduled_id}")
        elif function.schedule is not None:
            self.say(f"  its schedule is stopped ({function.schedule_stopped}): {function.schedule}")
        if event_subscriptions.has_triggers(function):
            self.say(f"  runs on {', '.join(function.events or ())}, as {function.events_id}")
        elif function.events is not None:
            self.say(f"  its events are stopped ({function.events_stopped}): {', '.join(function.events)}")


def _runs_as(options: dict[str, Any], environment: EnvironmentRef) -> Caller | None:
    if options["caller"] is None:
        if options["schedule"] is not None or options["on"]:
            raise CommandError("Schedules and events run a function as a key or member: name it with --as.")
        return None
    caller = caller_named(options["caller"], environment)
    if caller.kind not in ("key", "account"):
        raise CommandError("Schedules and events run a function as a server key or member, not as an app user.")
    return caller


def _body(options: dict[str, Any]) -> dict[str, Any]:
    body = {name: options[name] for name in ("timeout_ms", "memory_mb", "attempts") if options[name] is not None}
    if options["file"] is not None:
        body["source"] = _source(options["file"])
    if options["allow_host"] or options["no_hosts"]:
        body["allowed_hosts"] = options["allow_host"] or []
    if options["invoke"] is not None:
        body["invoke"] = None if options["invoke"] == "anybody" else options["invoke"]
    if options["schedule"] is not None or options["no_schedule"]:
        body["schedule"] = options["schedule"]
    if options["on"] or options["no_events"]:
        body["on"] = options["on"]
    secrets: dict[str, str | None] = dict(options["secret"])
    for name in options["unset_secret"]:
        if name in secrets:
            raise CommandError(f"--secret and --unset-secret both name {name}.")
        secrets[name] = None
    if secrets:
        body["secrets"] = secrets
    return body


def _source(name: str) -> str:
    try:
        return base.read_file(name).decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"{name} is not UTF-8 (at byte {error.start}).") from None
