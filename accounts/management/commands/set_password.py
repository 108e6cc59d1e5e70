from argparse import ArgumentParser
from typing import Any

from accounts import audit
from accounts.api import serializers
from accounts.management import terminal
from accounts.models import User
from accounts.users import service as user_service


class Command(terminal.Command):
    help = "Set a user's password and end all of their sessions. Asks for it unless an option gives it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("user", help="id (usr_…) of any user, or the email of a platform account")
        terminal.add_password_arguments(parser, optional=False)

    def handle(self, *args: Any, **options: Any) -> None:
        user = User.objects.filter(pk=options["user"]).first() or terminal.account(options["user"])
        user_service.change_user(user, actor=audit.SYSTEM, password=terminal.read_password(options) or "")
        self.answer(
            serializers.UserDetail(user).data,
            sentence=f"Set the password of {user.pk} ({user.email}).",
        )
