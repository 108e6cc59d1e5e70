"""A command whose `--help` ends with examples, or whatever else is laid out in lines."""

from argparse import RawDescriptionHelpFormatter
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser


class CommandWithExamples(BaseCommand):
    """A command whose `epilog` is printed verbatim."""

    epilog: ClassVar[str]

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, epilog=self.epilog, **kwargs
        )
