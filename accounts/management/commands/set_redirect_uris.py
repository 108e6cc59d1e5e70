import json
from argparse import ArgumentParser
from typing import Any

from accounts import audit
from accounts.management import terminal
from accounts.oauth import redirects


class Command(terminal.Command):
    help = "Replace the redirect URIs of an environment, or of applications that sign in platform accounts."

    def add_arguments(self, parser: ArgumentParser) -> None:
        terminal.add_pool_arguments(parser)
        parser.add_argument("--uris", nargs="*", metavar="URI", required=True, help="all of them; none clears the list")

    def handle(self, *args: Any, **options: Any) -> None:
        environment_id = terminal.environment(options)
        uris = redirects.replace(environment_id, options["uris"], actor=audit.SYSTEM)
        if options["json"]:
            self.stdout.write(json.dumps({"redirect_uris": uris}))
            return
        self.stderr.write(f"Redirect URIs of {environment_id or 'platform accounts'}: {len(uris)}.", self.style.SUCCESS)
        for uri in uris:
            self.stdout.write(uri)
