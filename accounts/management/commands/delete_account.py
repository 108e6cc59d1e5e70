from argparse import ArgumentParser
from typing import Any

from accounts import audit
from accounts.management import terminal
from accounts.users import service as user_service
from platform_site.cli.base import confirmed_by_name


class Command(terminal.Command):
    help = (
        "Delete a platform account with its sessions and account keys. It cannot be undone. Refused for the only owner "
        "of a project and for the last superuser."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("account", metavar="ACCOUNT", help="id (usr_…) or email of the platform account")
        parser.add_argument("--no-input", action="store_true", help="do not ask")

    def handle(self, *args: Any, **options: Any) -> None:
        user = terminal.account(options["account"])
        if not options["no_input"]:
            confirmed_by_name(user.email, f"Type {user.email} to delete the account: ", without_asking="--no-input")
        user_service.delete_user(user, actor=audit.SYSTEM)
        self.answer({"id": user.pk, "email": user.email}, sentence=f"Deleted the account {user.pk} ({user.email}).")
