import getpass
import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from accounts import audit
from accounts.management import terminal
from accounts.models.oauth import IdentityProvider
from accounts.oauth import discovery, identities, providers, serializers
from platform_site.cli.argument_types import pair
from platform_site.cli.base import read_file


def _text_of(name: str) -> str:
    try:
        return read_file(name).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CommandError(f"{name} cannot be read as text.") from None


class Command(terminal.Command):
    help = (
        "Add an identity provider: OpenID Connect by --issuer, plain OAuth 2 by its endpoints, or one of the presets "
        f"{', '.join(sorted(providers.PRESETS))}. Prints the redirect URI to register there. Asks for the client "
        "secret unless an option gives it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="its name in `provider=`, such as google")
        terminal.add_pool_arguments(parser)
        parser.add_argument("--client-id", required=True, help="of the client that you registered at the provider")
        secret = parser.add_mutually_exclusive_group()
        secret.add_argument("--client-secret-stdin", action="store_true", help="read the secret from standard input")
        secret.add_argument(
            "--client-secret", help="the secret itself (other users of this machine can see it in `ps`)"
        )
        secret.add_argument(
            "--private-key-file", help="a .p8 file of Apple, which signs the secrets; with --team-id and --key-id"
        )
        secret.add_argument("--public", action="store_true", help="a public client, which has no secret")
        parser.add_argument("--team-id", help="Apple: the team that the private key belongs to")
        parser.add_argument("--key-id", help="Apple: the id of the private key")
        parser.add_argument("--preset", choices=sorted(providers.PRESETS), help="fills in issuer, endpoints and scopes")
        parser.add_argument("--display-name", help="text of the sign-in button")
        parser.add_argument("--issuer", help="OpenID Connect: the issuer; the rest comes from its discovery document")
        for endpoint in ("authorization", "token", "userinfo", "emails"):
            parser.add_argument(f"--{endpoint}-endpoint", metavar="URL", help="plain OAuth 2")
        parser.add_argument(
            "--field",
            action="append",
            type=pair("a name and a path, such as subject=data.id"),
            metavar="NAME=PATH",
            help="plain OAuth 2: where the profile holds subject, email, email_verified, name",
        )
        parser.add_argument("--scopes", nargs="+", metavar="SCOPE", help="what the sign-in asks the provider for")
        parser.add_argument(
            "--client-auth",
            choices=IdentityProvider.ClientAuth.values,
            help="how the client secret is sent to the provider",
        )
        parser.add_argument(
            "--trusts-email",
            action="store_true",
            help="treat its emails as verified even if it does not say so; only for your own directory",
        )
        parser.add_argument("--no-sign-up", action="store_true", help="only for existing users")

    def handle(self, *args: Any, **options: Any) -> None:
        pool_id = terminal.pool(options)
        key_file = options["private_key_file"]
        given = options | {
            "profile_fields": dict(options["field"] or ()) or None,
            "sign_up": not options["no_sign_up"],
            "private_key": _text_of(key_file) if key_file else None,
            "client_secret": self._secret(options),
        }
        values = terminal.validated_options(serializers.NewProvider, given)
        if "issuer" in values:
            values["issuer"] = discovery.check(values["issuer"], pool_id)
        provider = providers.add(pool_id, actor=audit.SYSTEM, **values)
        values = serializers.ProviderDetail(provider).data
        self.answer(
            values,
            sentence=f"Added {provider.name} ({provider.pk}) for {pool_id or 'platform accounts'}.\n"
            f"Register this redirect URI there: {values['callback_url']}",
        )
        if not identities.admits_new_users(provider):
            self.stderr.write("Existing users can sign in with it; it does not create new ones (sign_up).")

    def _secret(self, options: dict[str, Any]) -> str | None:
        if options["public"] or options["private_key_file"]:
            return None
        if options["client_secret"] is not None:
            return str(options["client_secret"])
        if options["client_secret_stdin"]:
            return sys.stdin.readline().rstrip("\r\n")
        if not sys.stdin.isatty():
            raise CommandError("No terminal to ask for the secret. Pass --client-secret-stdin, or --public for none.")
        return getpass.getpass("Client secret: ")
