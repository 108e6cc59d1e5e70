import json
from argparse import ArgumentParser
from typing import Any

from accounts.management import terminal
from accounts.oauth import providers, redirects, serializers


class Command(terminal.Command):
    help = "List the identity providers of an environment or of platform accounts, and the redirect URIs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        terminal.add_pool_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        pool_id = terminal.pool(options)
        found = [serializers.ProviderDetail(each).data for each in providers.of_pool(pool_id)]
        uris = redirects.of(pool_id)
        if options["json"]:
            self.stdout.write(json.dumps({"identity_providers": found, "redirect_uris": uris}))
            return
        for each in found:
            where = each["issuer"] or each["authorization_endpoint"]
            off = "" if each["enabled"] else "  (off)"
            self.stdout.write(f"{each['id']}  {each['name']}  {each['kind']}  {where}{off}")
            self.stdout.write(f"    redirect URI to register there: {each['callback_url']}")
        for uri in uris:
            self.stdout.write(f"codes may go to {uri}")
        if not found and not uris:
            self.stderr.write("There are no identity providers.")
