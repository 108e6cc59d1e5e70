from argparse import ArgumentParser
from typing import Any

from accounts import audit
from accounts.api.serializers import InvitationInput
from accounts.management import terminal
from accounts.registration import invitations, serializers


class Command(terminal.Command):
    help = "Invite a person by email. The link lets them choose a password and creates their account."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("email", help="recipient of the invitation")
        terminal.add_pool_arguments(parser)
        parser.add_argument("--name", help="display name")
        parser.add_argument("--role", help="role for rules, such as editor")

    def handle(self, *args: Any, **options: Any) -> None:
        pool_id = terminal.pool(options)
        values = terminal.validated_options(InvitationInput, options)
        made = invitations.invite(pool_id=pool_id, actor=audit.SYSTEM, **values)
        self.answer(
            serializers.Invitation(made).data | {"environment_id": pool_id},
            sentence=f"Invited {made.recipient} to {pool_id or 'a platform account'} ({made.pk}); a worker sends the"
            " email.",
        )
