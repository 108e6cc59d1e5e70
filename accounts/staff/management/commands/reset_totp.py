from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from accounts import audit
from accounts.management import terminal
from accounts.staff import second_factor, sessions


class Command(terminal.Command):
    help = (
        "Remove the second factor of an account, which then only needs its password for the console, and end its "
        "sessions there."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("email", help="email of the account")

    def handle(self, *args: Any, **options: Any) -> None:
        user = terminal.account(options["email"])
        if not second_factor.disable(user, actor=audit.SYSTEM):
            raise CommandError(f"{user.email} has no second factor.")
        sessions.end_all(user.pk, actor=audit.SYSTEM, except_key=None)
        self.answer(
            {"id": user.pk, "email": user.email},
            sentence=f"Removed the second factor of {user.email}. Sessions of the console ended.",
        )
