"""Forms whose values the API checks. Each error of the API is shown at the field that caused it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

from platform_site.developer_console.api_calls import Refused
from platform_site.developer_console.frame import Console
from platform_site.http import exact_json

_INTEGER_DIGITS: Final = 18
_WORD_ENDS: Final = re.compile(r"[\s,]+")

Change = Callable[..., dict[str, Any]]
"""What a form asks for: called with the console and the object of the page, it returns what the page is to show."""


@dataclass(frozen=True, slots=True)
class Field:
    """One control. `kind` is an input's type, or `textarea`, `code`, `select`, `checkbox`, `secret`. A `password` and a
    `secret`, which has several lines, are never sent back to the browser."""

    name: str
    label: str
    kind: str = "text"
    help: str = ""
    choices: Sequence[tuple[str, str]] = ()
    required: bool = False
    placeholder: str = ""
    rows: int = 3
    suggestions: Sequence[str] = ()
    """Values to choose from, beside any other."""
    language: str = "json"
    """Of code, for its colours; the other one is `typescript`."""
    chooses_types: bool = False
    """Its value decides which of the fields are shown whose `types` are among its values."""
    types: Sequence[str] = ()

    def only_for(self, types: Sequence[str]) -> "Field":
        return replace(self, types=types)


@dataclass(frozen=True, slots=True)
class BoundField:
    """A field with what it shows."""

    field: Field
    id: str
    value: Any
    errors: list[str]


@dataclass
class Form:
    """Fields with the values to show: those of `asked` after an error, else those of `values`."""

    name: str
    """Tells the forms of a page apart; it is the value of their button `what`."""
    fields: Sequence[Field]
    values: Mapping[str, Any] = field(default_factory=dict)
    refusal: Refused | None = None
    asked: Mapping[str, str] | None = None

    def __iter__(self) -> Iterator[BoundField]:
        for each in self.fields:
            value = self.values.get(each.name, "")
            if self.asked is not None and each.kind not in ("password", "secret"):
                value = each.name in self.asked if each.kind == "checkbox" else self.asked.get(each.name, "")
            yield BoundField(each, f"{self.name}-{each.name}", value, [text for _, text in self._errors_of(each.name)])

    def _errors_of(self, name: str) -> list[tuple[str, str]]:
        """Paths and messages; an error inside of the field's value says where."""
        found = [] if self.refusal is None else self.refusal.fields
        return [
            (each["field"], each["message"] if each["field"] == name else f"{each['field']}: {each['message']}")
            for each in found
            if each["field"] == name or each["field"].startswith(f"{name}.")
        ]

    @property
    def other_errors(self) -> list[dict[str, str]]:
        """The errors that belong to no field of the form."""
        if self.refusal is None:
            return []
        shown = {path for each in self.fields for path, _ in self._errors_of(each.name)}
        return [each for each in self.refusal.fields if each["field"] not in shown]


@dataclass
class Submission:
    """What a page with several forms was sent, and what came of it."""

    what: str = ""
    """The name of the form."""
    asked: Mapping[str, str] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    """What the change returned, for the page to show."""
    refusal: Refused | None = None

    @property
    def status(self) -> int:
        return 200 if self.refusal is None else self.refusal.status

    @property
    def failed(self) -> str:
        """The name of the form whose change was refused."""
        return "" if self.refusal is None else self.what

    def form(self, name: str, fields: Sequence[Field], values: Mapping[str, Any]) -> Form:
        """With the errors and the values that were sent, if they are this form's."""
        is_mine = self.failed == name
        return Form(name, fields, values, self.refusal if is_mine else None, self.asked if is_mine else None)


def submit(console: Console, changes: Mapping[str, Change], *arguments: Any) -> Submission:
    """Make the change that the sent form names: `change(console, *arguments)`. Nothing for a page that is only read."""
    asked = console.request.POST
    found = Submission(asked.get("what", ""), asked)
    if console.request.method == "POST":
        try:
            change: Change = changes.get(found.what, unknown)
            found.context = change(console, *arguments)
        except Refused as refusal:
            found.refusal = refusal
    return found


def unknown(console: Console, *_: object) -> dict[str, Any]:
    raise Refused(400, {"code": "invalid_request", "message": "The page has no such form."})


def invalid(field_name: str, message: str) -> Refused:
    """An error of one field that the console finds before it calls the API."""
    fields = [{"field": field_name, "code": "invalid", "message": message}]
    return Refused(422, {"code": "validation_failed", "message": "Some fields are invalid.", "fields": fields})


def fingerprint(value: Any) -> str:
    """For `refuse_stale`, where the API gives no time of the last change."""
    return sha256(exact_json.canonical(value)).hexdigest()


def refuse_stale(console: Console, seen: str | None, current: str) -> None:
    """Raise Refused where somebody else has changed since what the form shows. `seen` comes from the form. Members who
    may not write get the API's own refusal instead."""
    if console.may_write and seen != current:
        message = "Somebody else changed this meanwhile. Your values are below: save again to overwrite the others."
        raise Refused(412, {"code": "precondition_failed", "message": message})


def json_of(text: str, field_name: str) -> Any:
    """The value of a field that holds JSON; None if it is empty. Raises Refused."""
    if not text.strip():
        return None
    try:
        return exact_json.loads(text)
    except ValueError as error:
        raise invalid(field_name, f"This is not JSON: {error}") from None


def json_text(value: Any) -> str:
    """As such a field shows it."""
    return "" if value is None else exact_json.dumps(value, indent=True)


def integer_of(text: str) -> int | str:
    """The number, or the text for the API to refuse."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _INTEGER_DIGITS else text


def moment_of(text: str) -> str:
    """What `datetime-local` sends, as a time in UTC; anything else stays, for the API to refuse."""
    text = text.strip()
    return f"{text}Z" if text and "Z" not in text and "+" not in text else text


def chosen(names: Sequence[str], asked: Mapping[str, str]) -> dict[str, str]:
    """Those fields that are not empty."""
    return {name: asked[name].strip().replace("\r\n", "\n") for name in names if asked.get(name, "").strip()}


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def words(asked: Mapping[str, str], name: str) -> list[str]:
    """The words of a field, separated by commas or spaces."""
    return [each for each in _WORD_ENDS.split(asked.get(name, "").strip()) if each]
