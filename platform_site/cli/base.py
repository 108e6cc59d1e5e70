from argparse import RawDescriptionHelpFormatter
from collections.abc import Mapping
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError, CommandParser
from tqdm import tqdm


class CommandWithExamples(BaseCommand):
    epilog: ClassVar[str]

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        return super().create_parser(
            prog_name, subcommand, formatter_class=RawDescriptionHelpFormatter, epilog=self.epilog, **kwargs
        )


def progress_bar(command: BaseCommand, options: Mapping[str, Any], **shown: Any) -> Any:
    """On standard error; hidden by the option `--no-progress`, and where standard error is no terminal."""
    return tqdm(unit_scale=True, file=command.stderr._out, disable=options["no_progress"] or None, **shown)


def counted(count: int, plural: str) -> str:
    return f"{count} {plural.removesuffix('s') if count == 1 else plural}"


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
