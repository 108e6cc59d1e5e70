"""Confirmations and secrets, from the terminal or standard input."""

import sys
from typing import Annotated

import typer

from platform_site.developer_cli import output
from platform_site.developer_cli.failures import Exit, Failure

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def confirm(question: str, yes: bool) -> None:
    """Ask in a terminal; elsewhere `--yes` is needed."""
    if yes:
        return
    if not output.is_terminal():
        raise Failure(Exit.USAGE, "unconfirmed", question, "Repeat the command with --yes.")
    if not output.asks(question):
        output.note("Nothing was changed.")
        raise typer.Exit(Exit.USAGE)


def secret_input(prompt: str) -> str:
    """A secret without echo, or the first line of standard input. Never an argument, which other users see."""
    value = secret_input_if_any(prompt)
    if not value:
        raise Failure(Exit.USAGE, "no_input", f"{prompt}: standard input is empty.", "Pipe the value into the command.")
    return value


def secret_input_if_any(prompt: str) -> str | None:
    """None if standard input has no line."""
    if sys.stdin.isatty():
        return str(typer.prompt(prompt, hide_input=True, err=True))
    line = sys.stdin.readline()
    return line.rstrip("\r\n") if line else None
