"""Standard output has the new URL, or a line of JSON per endpoint. Exit codes: 0 done, 1 refused."""

from argparse import ArgumentParser
from typing import Any, Final

import orjson
from django.core.management.base import CommandError

from accounts import audit
from accounts.management.terminal import ENVIRONMENT, environment_ref_named, validated
from functions import directory
from functions.inbound import serializers
from functions.inbound import service as inbound_service
from functions.management.callers import caller_named
from platform_site.cli import base
from platform_site.identity.callers import EnvironmentRef

_EXAMPLES: Final = """
An inbound endpoint is a URL by which a provider's webhooks run the function as --as, with its permissions at that time.
The URL is printed once. Without --as and --revoke the function's endpoints are listed.

examples:
  manage.py inbound_address env_01k… paid --as key_01k… --label Stripe
  manage.py inbound_address prj_01k…/production hub --as key_01k… --wait      returns the function's output
  manage.py inbound_address env_01k… paid
  manage.py inbound_address env_01k… paid --revoke inb_01k…
"""


class Command(base.Command):
    help = "Create, list or revoke the inbound endpoints by which a provider's webhooks reach a function."
    epilog = _EXAMPLES

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("environment", metavar="ENV", help=ENVIRONMENT)
        parser.add_argument("name", metavar="NAME", help="of the function")
        what = parser.add_mutually_exclusive_group()
        what.add_argument(
            "--as", dest="caller", metavar="ID", help="create one that runs the function as key_… or usr_… (a member)"
        )
        what.add_argument("--revoke", metavar="ID", help="revoke this one: inb_…")
        parser.add_argument("--label", help="label of the new one, shown in lists")
        parser.add_argument("--wait", action="store_true", help="the new one returns the function's output")

    def handle(self, *args: Any, **options: Any) -> None:
        environment, name = environment_ref_named(options["environment"]), options["name"]
        if options["caller"] is not None:
            self._make(environment, name, options)
        elif options["revoke"] is not None:
            inbound_service.revoke(environment, name, options["revoke"], actor=audit.SYSTEM)
            self.say("The endpoint is revoked.", self.style.SUCCESS)
        else:
            endpoints = inbound_service.all_of(environment, directory.function_of(environment, name))
            for each in endpoints:
                self.stdout.write(orjson.dumps(serializers.Endpoint(each).data).decode())
            if not endpoints:
                self.say(f"{name} has no inbound endpoint; --as creates one.")

    def _make(self, environment: EnvironmentRef, name: str, options: dict[str, Any]) -> None:
        runs_as = caller_named(options["caller"], environment)
        if runs_as.kind not in ("key", "account"):
            raise CommandError("An inbound endpoint runs a function as a server key or member, not as an app user.")
        body = {"async": not options["wait"]} | ({"label": options["label"]} if options["label"] is not None else {})
        values = validated(serializers.NewEndpoint, body)
        made, url = inbound_service.create(environment, name, values, runs_as=runs_as, actor=audit.SYSTEM)
        self.say(f"{made.pk} runs {name} as {runs_as.id}. Its URL, shown only once:", self.style.SUCCESS)
        self.stdout.write(url)
