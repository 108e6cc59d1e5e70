from argparse import ArgumentParser
from typing import Any

from accounts import audit
from accounts.management import terminal
from accounts.tokens import signing_keys
from platform_site.http.fields import timestamp


class Command(terminal.Command):
    help = (
        "Create a new signing key for access tokens. It is published first and signs "
        f"{int(signing_keys.PUBLISHED_AHEAD.total_seconds() // 60)} minutes later; the old one verifies until the last "
        "token that it signed has expired, so that no session is interrupted."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--immediately",
            action="store_true",
            help="the private key leaked: sign with the new key now and refuse tokens of the old ones within "
            f"{signing_keys.REFRESH_SECONDS} s (their holders refresh and go on)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        key = signing_keys.rotate(actor=audit.SYSTEM, immediately=options["immediately"])
        removed = signing_keys.remove_retired()
        values = {"kid": key.kid, "signs_from": timestamp(key.signs_from), "removed": removed}
        self.answer(values, sentence=f"The key {key.kid} signs from {timestamp(key.signs_from)}.")
