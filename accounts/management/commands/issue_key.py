from argparse import ArgumentParser
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.core.management.base import CommandError

from accounts import audit
from accounts.api import serializers
from accounts.keys import permissions, publishable_key_exposure
from accounts.management import terminal
from accounts.users import service as user_service
from platform_site.cli.argument_types import whole_number
from platform_site.identity.callers import ACCOUNT_SCOPES, ENVIRONMENT_SCOPES, PUBLISHABLE_SCOPES, SCOPES

_ALL: Final = "all"


class Command(terminal.Command):
    help = (
        "Issue a server key for an environment (--environment) or for a platform account (--account), or a key for "
        "web pages (--publishable). "
        f"Scopes: {' '.join(SCOPES)}. An account's key holds only {' '.join(sorted(ACCOUNT_SCOPES))}, "
        f"a publishable one only {' '.join(sorted(PUBLISHABLE_SCOPES))}."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="what the key is for, shown in lists")
        owner = parser.add_mutually_exclusive_group(required=True)
        owner.add_argument("--environment", metavar="ENV", help=terminal.ENVIRONMENT)
        owner.add_argument("--account", metavar="ACCOUNT", help="id (usr_…) or email of the platform account")
        parser.add_argument(
            "--scopes",
            nargs="+",
            metavar="SCOPE",
            help="what the key may do; `all` means all scopes of its kind, including rows:bypass_rules. A publishable "
            "key has all of its scopes by default",
        )
        parser.add_argument(
            "--publishable",
            action="store_true",
            help="a key that may be published in web pages; it has the role anonymous in rules",
        )
        parser.add_argument("--expires-in-days", type=whole_number(1, 3650), metavar="DAYS", help="default: never")

    def handle(self, *args: Any, **options: Any) -> None:
        if (environment_id := terminal.environment(options)) is not None:
            authority, everything = permissions.operators(environment_id=environment_id), ENVIRONMENT_SCOPES
        else:
            account = terminal.account(options["account"])
            authority, everything = permissions.operators(account_id=account.pk), ACCOUNT_SCOPES
        if options["publishable"]:
            everything = PUBLISHABLE_SCOPES
        scopes = options["scopes"]
        if scopes is None and not options["publishable"]:
            raise CommandError(f"Pass --scopes: some of {' '.join(sorted(everything))}, or all.")
        if scopes in (None, [_ALL]):
            scopes = sorted(everything)
        days: int | None = options["expires_in_days"]
        opened = publishable_key_exposure.by_key(authority.environment_id, scopes) if options["publishable"] else None
        key, secret = user_service.issue_key(
            name=terminal.validated_options(serializers.KeyName, options)["name"],
            scopes=scopes,
            authority=authority,
            actor=audit.SYSTEM,
            expires_at=datetime.now(UTC) + timedelta(days) if days else None,
            is_publishable=options["publishable"],
        )
        key.opens = opened
        exposure = "".join(f"\nIt allows everyone: {each}." for each in (opened.sentences() if opened else ()))
        self.answer(
            serializers.KeyDetail(key).data,
            sentence=f"Issued the key {key.pk} ({key.name}) for {authority.owner}: {', '.join(key.scopes)}.{exposure}",
            secret=secret,
        )
