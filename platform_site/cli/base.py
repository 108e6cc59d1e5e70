from argparse import RawDescriptionHelpFormatter
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser


class CommandWithExamples(BaseCommand):
    epilog: ClassVar[str]

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, epilog=self.epilog, **kwargs
        )


def confirmed_by_name(name: str, prompt: str, *, without_asking: str) -> None:
    """Raises CommandError unless `name` is typed."""
    try:
        answer = input(prompt)
    except EOFError:
        raise CommandError(
            f"Standard input ended before {name} was typed. Nothing was changed. Pass {without_asking}."
        ) from None
    if answer.strip() != name:
        raise CommandError("Not confirmed. Nothing was changed.")
