from argparse import ArgumentParser
from typing import Any

from accounts import audit
from accounts.api import serializers
from accounts.management import terminal
from accounts.users import service as user_service


class Command(terminal.Command):
    help = "Create a platform account, which can own projects. Asks for the password unless an option gives it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("email", help="email to sign in with")
        parser.add_argument("--name", default="", help="display name")
        parser.add_argument("--staff", action="store_true", help="make it a superuser of the console (/admin)")
        terminal.add_password_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        values = terminal.validated_options(serializers.UserFields, options)
        user = user_service.create_user(
            pool_id=None,
            password=terminal.read_password(options),
            is_staff=options["staff"],
            actor=audit.SYSTEM,
            **values,
        )
        self.answer(
            {"id": user.pk, "email": user.email, "name": user.name, "staff": user.is_staff},
            sentence=f"Created the account {user.pk} for {user.email}.",
        )
