from argparse import ArgumentParser
from typing import Any

from accounts import audit
from accounts.management import terminal
from accounts.models.registration import SignUpMode
from accounts.registration import pool_settings, serializers
from platform_site.cli.argument_types import pair


class Command(terminal.Command):
    help = (
        "Show or change how users join a user pool: who may sign up, the name of the application"
        " in emails, and its own pages for their links."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        terminal.add_pool_arguments(parser)
        parser.add_argument("--sign-up", choices=SignUpMode.values, help="who may sign up")
        parser.add_argument("--app-name", help="name of the application in emails")
        parser.add_argument("--app-url", help="URL that the last page of a flow links to")
        parser.add_argument(
            "--link",
            action="append",
            type=pair("a kind and a URL, such as reset_password=https://app.example/?t={token}"),
            metavar="KIND=URL",
            help=f"the application's own page for a link, with {{token}} in it; kinds: "
            f"{', '.join(pool_settings.LINKS)}. Replaces all that were there",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        pool_id = terminal.pool(options)
        given: dict[str, Any] = {
            name: options[name] for name in ("sign_up", "app_name", "app_url") if options[name] is not None
        }
        if options["link"] is not None:
            given["link_urls"] = dict(options["link"])
        found = pool_settings.settings_of(pool_id)
        if given:
            found = pool_settings.change_settings(pool_id, actor=audit.SYSTEM, **given)
        values = serializers.Settings(found).data | {"environment_id": pool_id}
        links = "".join(f"\n  {kind}: {url}" for kind, url in found.link_urls.items())
        self.answer(
            values,
            sentence=f"Sign-up to {pool_id or 'platform accounts'}: {found.sign_up}."
            f" Name in emails: {pool_settings.app_name(found)}.{links}",
        )
