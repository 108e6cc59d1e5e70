import os
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from accounts import audit
from accounts.api import serializers
from accounts.management import terminal
from accounts.users import service as user_service
from platform_site.http import bodies


class Command(terminal.Command):
    help = "Create a user who signs in to one environment. Asks for the password unless an option gives it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("environment", metavar="ENVIRONMENT", help=terminal.ENVIRONMENT)
        parser.add_argument("email", help="email to sign in with")
        parser.add_argument("--name", help="display name")
        parser.add_argument("--role", help="role for rules, such as editor")
        parser.add_argument("--claims", help='claims for rules, a JSON object such as \'{"team": "a"}\'')
        terminal.add_password_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        pool_id = terminal.environment_ref_named(options["environment"]).pool_id
        if options["claims"] is not None:
            options["claims"] = bodies.read(os.fsencode(options["claims"]))
            if not isinstance(options["claims"], dict):
                raise CommandError("--claims must be a JSON object.")
        values = terminal.validated_options(serializers.UserFields, options)
        user = user_service.create_user(
            pool_id=pool_id, password=terminal.read_password(options), actor=audit.SYSTEM, **values
        )
        self.answer(
            serializers.UserDetail(user).data | {"environment_id": pool_id},
            sentence=f"Created the user {user.pk} ({user.email}) in {pool_id}.",
        )
