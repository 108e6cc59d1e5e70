"""`manage.py add_identity_provider`: by whom the users of an environment, or platform accounts, may be recognised."""

import getpass
import sys
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import CommandError

from accounts import audit
from accounts.management import terminal
from accounts.models.oauth import IdentityProvider
from accounts.oauth import identities, metadata, providers, serializers
from accounts.oauth.errors import FlowError
from accounts.oauth.transport import Calls

_TAKEN_OVER = (
    "preset", "display_name", "issuer", "authorization_endpoint", "token_endpoint", "userinfo_endpoint",
    "emails_endpoint", "scopes", "client_auth",
)  # fmt: skip


def _field(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals:
        raise ArgumentTypeError("must be a name and a path, such as subject=data.id")
    return name, path


class Command(terminal.Command):
    help = (
        "Add an identity provider: OpenID Connect by --issuer, plain OAuth 2 by its endpoints, or one of the presets "
        f"{', '.join(sorted(providers.PRESETS))}. Prints the redirect URI to register there. Asks for the client "
        "secret unless told where to find it."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("name", help="how `provider=` calls it, such as google")
        terminal.add_pool_arguments(parser)
        parser.add_argument("--client-id", required=True)
        secret = parser.add_mutually_exclusive_group()
        secret.add_argument("--client-secret-stdin", action="store_true", help="read the secret from standard input")
        secret.add_argument(
            "--client-secret", help="the secret itself (other users of this machine can see it in `ps`)"
        )
        secret.add_argument("--public", action="store_true", help="a public client, which has no secret")
        parser.add_argument("--preset", choices=sorted(providers.PRESETS))
        parser.add_argument("--display-name", help="what people read on the button")
        parser.add_argument("--issuer", help="OpenID Connect: the issuer, whose discovery document says the rest")
        for endpoint in ("authorization", "token", "userinfo", "emails"):
            parser.add_argument(f"--{endpoint}-endpoint", metavar="URL", help="plain OAuth 2")
        parser.add_argument(
            "--field",
            action="append",
            type=_field,
            metavar="NAME=PATH",
            help="plain OAuth 2: where the profile holds subject, email, email_verified, name",
        )
        parser.add_argument("--scopes", nargs="+", metavar="SCOPE")
        parser.add_argument("--client-auth", choices=IdentityProvider.ClientAuth.values)
        parser.add_argument(
            "--trusts-email",
            action="store_true",
            help="its e-mail addresses count as verified though it does not say so; for a directory of your own only",
        )
        parser.add_argument("--no-sign-up", action="store_true", help="for those who are users already")

    def handle(self, *args: Any, **options: Any) -> None:
        pool_id = terminal.pool(options)
        given = {name: options[name] for name in ("name", "client_id", *_TAKEN_OVER) if options[name] is not None}
        if options["field"]:
            given["profile_fields"] = dict(options["field"])
        given |= {"trusts_email": options["trusts_email"], "sign_up": not options["no_sign_up"]}
        secret = self._secret(options)
        if secret is not None:
            given["client_secret"] = secret
        with terminal.sentences():
            values = serializers.filled_in(terminal.validated(serializers.NewProvider, given))
            values.setdefault("client_secret", None)
            provider = providers.add(pool_id, actor=audit.SYSTEM, **values)
        facts = serializers.provider(provider)
        self.answer(
            facts,
            sentence=f"Added {provider.name} ({provider.pk}) for {pool_id or 'platform accounts'}.\n"
            f"Register this redirect URI there: {facts['callback_url']}",
            as_json=options["json"],
        )
        self._advise(provider)

    def _secret(self, options: dict[str, Any]) -> str | None:
        if options["public"]:
            return None
        if options["client_secret"] is not None:
            return str(options["client_secret"])
        if options["client_secret_stdin"]:
            return sys.stdin.readline().rstrip("\r\n")
        if not sys.stdin.isatty():
            raise CommandError("No terminal to ask for the secret: pass --client-secret-stdin, or --public for none.")
        return getpass.getpass("Client secret: ")

    def _advise(self, provider: IdentityProvider) -> None:
        """What would go wrong at the first sign-in, said now."""
        try:
            metadata.of(Calls(provider))
        except FlowError as error:
            self.stderr.write(
                f"Its discovery document cannot be used yet: {error.why or error.text}", self.style.WARNING
            )
        if not identities.admits_new_users(provider):
            self.stderr.write("It signs in users who are there already; new ones are not admitted (sign_up).")
