"""Standard output has the function's output as JSON (with `--json` the run); log and messages go to standard error.
Exit codes: 0 succeeded or queued, 1 refused, 3 failed or timed out."""

import json
import sys
from argparse import ArgumentParser
from typing import Any, Final

import orjson
from django.core.management.base import CommandError

from accounts.management.terminal import ENVIRONMENT, environment_ref_named
from functions.api import serializers
from functions.execution import calls, executor
from functions.management.callers import caller_named
from functions.models import Run
from functions.runs.start import NewRun
from platform_site.cli import base
from platform_site.http import bodies, exact_json
from platform_site.identity.callers import ENVIRONMENT_SCOPES, Caller
from projects.directory import roles

_FAILED: Final = 3
_EXAMPLES: Final = """
Without --as it runs with the permissions of a server key that holds every scope of the environment but
rows:bypass_rules. With --as it reads and writes rows as that app user, member or key, with only their
permissions.

examples:
  manage.py run_function env_01k… sum --input '{"a": 1, "b": 2}'
  manage.py run_function prj_01k…/production open-tasks --as usr_01k…
  manage.py run_function env_01k… report --input @input.json > output.json
  manage.py run_function env_01k… report --as usr_01k… --async
"""


class Command(base.Command):
    help = "Invoke a function and print its output; its log goes to standard error."
    epilog = _EXAMPLES

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        parser.add_argument("name", metavar="NAME", help="of the function")
        parser.add_argument(
            "--input", default="{}", metavar="JSON", help="an object; @FILE reads a file, - standard input (default {})"
        )
        parser.add_argument("--as", dest="caller", metavar="ID", help="the caller: usr_… (app user or member) or key_…")
        parser.add_argument("--async", dest="queue", action="store_true", help="queue it for a worker; needs --as")
        parser.add_argument("--json", action="store_true", help="print the whole run as the API shows it")

    def handle(self, *args: Any, **options: Any) -> None:
        environment = environment_ref_named(options["environment"])
        name: str = options["name"]
        given = bodies.read(_given(options["input"]))
        if not isinstance(given, dict):
            raise CommandError("The input must be a JSON object.")
        if options["queue"] and not options["caller"]:
            raise CommandError("A queued run needs a caller: name it with --as.")
        if options["caller"]:
            caller = caller_named(options["caller"], environment)
        else:
            scopes = roles.of_key(ENVIRONMENT_SCOPES - {"rows:bypass_rules"}, bound_to_environment=True)
            caller = Caller("key", "terminal", scopes, plan=environment.plan, environment=environment, name="terminal")
        new = NewRun(environment, caller, name, exact_json.dumps(given))
        if options["queue"]:
            run_id = calls.enqueue(new)
            self.say("Queued.", self.style.SUCCESS)
            self.stdout.write(run_id)
            return
        try:
            started, _ = calls.invoke(new)
        finally:
            executor.close_pool()
        self._answer(Run.objects.using(environment.cluster).get(pk=started.run_id), as_json=options["json"])

    def _answer(self, run: Run, *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(orjson.dumps(serializers.RunDetail(run).data).decode())
        else:
            for line in run.logs:
                self.say(f"{line['level']:7} {line['text']}")
            if run.status == Run.Status.SUCCEEDED:
                # Written anew in ASCII: an output may hold what drives a terminal.
                indent = 2 if self.stdout.isatty() else None
                self.stdout.write(json.dumps(exact_json.loads(run.output or "null"), indent=indent))
                self.say(f"{run.pk} succeeded in {run.duration_ms} ms.", self.style.SUCCESS)
        if run.status == Run.Status.FAILED:
            text = serializers.error_text(run.error)
            self.say(f"{run.pk} failed after {run.duration_ms} ms: {text}", self.style.ERROR)
            stack = str((run.error or {}).get("stack") or "")
            for line in stack.splitlines():
                if line.lstrip().startswith(("at ", "Caused by: ", "One of: ")):
                    self.say(line)
            sys.exit(_FAILED)


def _given(text: str) -> bytes:
    if text == "-" or text.startswith("@"):
        return base.read_file(text.removeprefix("@"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CommandError("The input is not UTF-8.") from None
