from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from accounts import audit
from accounts.management import terminal
from accounts.oauth import providers


class Command(terminal.Command):
    help = "Remove an identity provider. Its users stay, but can no longer sign in with it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="its name or its id, idp_…")
        terminal.add_pool_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        pool_id = terminal.pool(options)
        of_pool = providers.of_pool(pool_id)
        provider = of_pool.filter(name=options["name"]).first() or of_pool.filter(pk=options["name"]).first()
        if provider is None:
            raise CommandError(f"There is no identity provider {options['name']} here.")
        provider_id = provider.pk
        count = providers.remove(provider, actor=audit.SYSTEM)
        self.answer(
            {"id": provider_id, "identities": count},
            sentence=f"Removed {provider.name} ({provider_id}); {count} linked identities were deleted.",
        )
