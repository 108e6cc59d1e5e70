"""Output for terminals, pipes (tab-separated) and programs (`--json`). Results go to standard output, everything else
to standard error. In texts from the server and from files, control characters (with line breaks) and those that change
the direction of text are escaped."""

import io
import json
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from platform_site.developer_cli.failures import Failure

_DIRECTIONS = r"\u2028-\u202e\u2066-\u2069"
_CONTROL = re.compile(rf"[\x00-\x08\x0a-\x1f\x7f-\x9f{_DIRECTIONS}]")
_CONTROL_IN_JSON = re.compile(rf"[\x7f-\x9f{_DIRECTIONS}]")


class _State:
    json = False


def use_json() -> None:
    _State.json = True


Sql = Annotated[bool, typer.Option("--sql", help="Also show the SQL statements of schema changes.")]


Impact = Annotated[
    bool, typer.Option("--impact", help="Also count the rows that changed rules would show and hide. Needs rows:read.")
]


def accept_every_character() -> None:
    """Escape characters that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def is_json() -> bool:
    return _State.json


def is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and not _State.json


def plain(value: Any) -> str:
    """In one line."""
    return _CONTROL.sub(_escape, _text(value))


def indented(value: Any) -> str:
    """In its own lines, of which no further one looks like a line of this command."""
    return "\n        ".join(plain(line) for line in _text(value).split("\n"))


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return "\\n" if code == 0x0A else f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def asks(question: str) -> bool:
    return typer.confirm(plain(question), err=True)


def print_json(value: Any, indent: int | None = 2) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    print(_CONTROL_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text), flush=True)


def result(value: Any, *lines: str) -> None:
    """A command's result: `value` with `--json`, else `lines`."""
    if _State.json:
        print_json(value)
    else:
        print("\n".join(map(plain, lines)))


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str], empty: str) -> None:
    if _State.json:
        print_json(list(rows))
    elif not rows:
        note(empty)
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        shown = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            shown.add_column(column.upper(), overflow="fold", no_wrap=column == "id")  # ids are copied
        for row in rows:
            shown.add_row(*(Text(_cell(row.get(column))) for column in columns))
        Console(highlight=False).print(shown)
    else:
        print("\t".join(columns))
        for row in rows:
            print("\t".join(_cell(row.get(column)).replace("\t", "\\t") for column in columns))


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(plain(each) for each in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    return plain(value)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def note(text: str) -> None:
    if not _State.json:
        print(plain(text), file=sys.stderr)


def say(value: dict[str, Any], *lines: str) -> None:
    """Necessary information, on standard error: `value` with `--json`, else `lines`."""
    print(json.dumps(value) if _State.json else "\n".join(map(plain, lines)), file=sys.stderr, flush=True)


def impact(entries: Sequence[dict[str, Any]]) -> None:
    """What changed rules would show and hide, one line for each table and role or user that is affected."""
    for each in entries:
        parts = [f"not counted: {each['not_counted']}"] if each["not_counted"] else []
        if each["appearing"] or each["vanishing"]:
            least = "at least " if each["is_sample"] else ""
            parts.append(f"{least}{count(each['appearing'], 'more row')}, {each['vanishing']} fewer")
        for verb, columns in (("shows", each["columns_appearing"]), ("hides", each["columns_vanishing"])):
            parts += [f"{verb} {', '.join(columns)}"] if columns else []
        if parts:
            print(plain(f"impact on {each['table'] or 'users'} for {each['subject']}: {'; '.join(parts)}"))


def failure(error: Failure) -> None:
    if _State.json:
        print(json.dumps(error.as_json()), file=sys.stderr)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text("Error: ", style="bold red") + Text(indented(error.message), style="not bold default"))
    for field in error.fields:
        where = f"{field['location']}: " if "location" in field else ""
        console.print(Text(indented(f"  {where}{field.get('field')}: {field.get('message')}")))
    if error.hint:
        console.print(Text(plain(error.hint)))
    if error.request_id:
        console.print(Text(f"Request id: {plain(error.request_id)}", style="dim"))
