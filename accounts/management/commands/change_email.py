from argparse import ArgumentParser
from typing import Any

from django.db import transaction

from accounts import audit
from accounts.management import terminal
from accounts.models.registration import AccountEmail
from accounts.registration import email_outbox
from accounts.staff import sessions as staff_sessions
from accounts.users import emails, exchange_codes
from accounts.users import service as user_service
from platform_site.http.errors import ValidationFailed


class Command(terminal.Command):
    help = (
        "Change the email of a platform account and end its sessions. The old email is notified, and the new one "
        "is unverified. Make sure first that the person who asks is the account's owner."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("account", metavar="ACCOUNT", help="id (usr_…) or email of the platform account")
        parser.add_argument("email", metavar="EMAIL", help="the new email")

    def handle(self, *args: Any, **options: Any) -> None:
        before = terminal.account(options["account"])
        if emails.check(options["email"]) == emails.normalize(before.email):
            raise ValidationFailed.of("email", "unchanged", "This is already the account's email.")
        with transaction.atomic():
            user = user_service.change_user(before, actor=audit.SYSTEM, email=options["email"], via="command")
            exchange_codes.end_sessions(user.pk, actor=audit.SYSTEM, reason="revoked_by_staff", scope="all")
            staff_sessions.end_all(user.pk, actor=audit.SYSTEM, except_key=None)
            email_outbox.notify(before, AccountEmail.Kind.EMAIL_CHANGED, new_email=user.email)
        self.answer(
            {"id": user.pk, "email": user.email},
            sentence=f"Changed the email of {user.pk} from {before.email} to {user.email}.",
        )
