from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from accounts import audit
from accounts.api import serializers
from accounts.keys import server_keys
from accounts.management import terminal
from accounts.models import ServerKey
from accounts.users import service as user_service


class Command(terminal.Command):
    help = "Revoke a server key or a publishable one. It is refused from the next request on, in every process."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "key", help="id of the key (key_…), or the secret itself (sk_… or pk_…), such as a leaked one"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        wanted: str = options["key"]
        secret_hash = server_keys.parse(wanted)
        found = ServerKey.objects.filter(**({"secret_hash": secret_hash} if secret_hash else {"pk": wanted})).first()
        if found is None:
            raise CommandError("There is no such key." if secret_hash else f"There is no key {wanted}.")
        if found.revoked_at is not None:
            raise CommandError(f"The key {found.pk} was revoked at {found.revoked_at.isoformat()}.")
        user_service.revoke_key(found, actor=audit.SYSTEM)
        self.answer(
            serializers.KeyDetail(found).data,
            sentence=f"Revoked the key {found.pk} ({found.name}).",
        )
