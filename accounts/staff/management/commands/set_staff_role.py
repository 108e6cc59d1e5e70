from argparse import ArgumentParser
from typing import Any

from accounts import audit
from accounts.management import terminal
from accounts.staff import roles
from accounts.staff.roles import StaffRole


class Command(terminal.Command):
    help = "Make a platform account support, operator or superuser in the console, or remove its role (none)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("email", help="email of the account")
        parser.add_argument("role", choices=[*StaffRole.values, "none"], help="none removes the role")

    def handle(self, *args: Any, **options: Any) -> None:
        role = None if options["role"] == "none" else StaffRole(options["role"])
        user = roles.set_role(terminal.account(options["email"]), role, actor=audit.SYSTEM)
        self.answer(
            {"id": user.pk, "email": user.email, "role": role},
            sentence=f"{user.email} is {role.value if role else 'no member of staff'} now.",
        )
