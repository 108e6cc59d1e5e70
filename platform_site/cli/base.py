import re
import sys
from argparse import SUPPRESS, Action, RawDescriptionHelpFormatter, _SubParsersAction
from collections.abc import Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser
from tqdm import tqdm

from platform_site.http.errors import ApiError

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def escaped(text: str) -> str:
    """Text of tenants must not control the operator's terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


class Command(BaseCommand):
    """An error of the API ends it, with the messages of its fields."""

    epilog: ClassVar[str] = ""
    """Examples, after the options in the help."""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        if self.epilog:
            kwargs |= {"formatter_class": RawDescriptionHelpFormatter, "epilog": self.epilog}
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.__class__ = _Parser
        own = [each for each in parser._actions if each.option_strings and each.dest not in ("help", "version")]
        for verbs in parser._actions:
            if isinstance(verbs, _SubParsersAction):
                for verb in verbs.choices.values():
                    _accept_options(verb, own)
        return parser

    def execute(self, *args: Any, **options: Any) -> Any:
        try:
            return super().execute(*args, **options)
        except ApiError as error:
            raise refused(error.text, {field.field: field.message for field in error.fields}) from None

    def say(self, text: str, style: Any = str) -> None:
        """To standard error: standard output is for results."""
        self.stderr.write(escaped(text), style)


class _Parser(CommandParser):
    def _match_arguments_partial(self, actions: Any, arg_strings_pattern: str) -> list[int]:
        """Python before 3.12.7 takes an optional FILE as left out if an option comes before it."""
        counts = super()._match_arguments_partial(actions, arg_strings_pattern)
        while counts and counts[-1] == 0 and "O" in arg_strings_pattern:
            counts.pop()
        return counts


def _accept_options(verb: CommandParser, options: Iterable[Action]) -> None:
    """Also behind the verb: `config show ENV --traceback`."""
    verb.__class__ = _Parser
    for each in options:
        option = copy(each)
        option.default = option.help = SUPPRESS
        verb._add_action(option)


def refused(text: str, details: Mapping[str, str]) -> CommandError:
    return CommandError(escaped(text + "".join(f"\n  {name}: {message}" for name, message in details.items())))


def read_file(name: str) -> bytes:
    """The content of a file, or of standard input for `-`. Raises CommandError."""
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror}.") from None


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
