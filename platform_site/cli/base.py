"""A command whose `--help` ends with examples, or whatever else is laid out in lines; and questions to operators."""

from argparse import RawDescriptionHelpFormatter
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser


class CommandWithExamples(BaseCommand):
    """A command whose `epilog` is printed verbatim."""

    epilog: ClassVar[str]

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, epilog=self.epilog, **kwargs
        )


def confirmed_by_name(name: str, prompt: str, *, without_asking: str) -> None:
    """Have `name` typed. Raises CommandError for another answer, and where standard input ends before one."""
    try:
        answer = input(prompt)
    except EOFError:
        raise CommandError(
            f"Standard input ended before {name} was typed. Nothing was changed. Pass {without_asking}."
        ) from None
    if answer.strip() != name:
        raise CommandError("Not confirmed. Nothing was changed.")
