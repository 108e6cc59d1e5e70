"""Forms whose values the API checks. Each error of the API is shown at the field that caused it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from platform_site.developer_console.api_calls import Refused
from platform_site.developer_console.frame import Console
from platform_site.http import exact_json

_INTEGER_DIGITS: Final = 18


@dataclass(frozen=True, slots=True)
class Field:
    """One control. `kind` is an input's type, or `textarea`, `code`, `select`, `checkbox`, `secret`.

    A `password` and a `secret`, which has several lines, are never sent back to the browser.
    """

    name: str
    label: str
    kind: str = "text"
    help: str = ""
    choices: Sequence[tuple[str, str]] = ()
    required: bool = False
    placeholder: str = ""
    rows: int = 3


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


def invalid(field_name: str, message: str) -> Refused:
    """An error of one field that the console finds before it calls the API."""
    fields = [{"field": field_name, "code": "invalid", "message": message}]
    return Refused(422, {"code": "validation_failed", "message": "Some fields are invalid.", "fields": fields})


def fingerprint(value: Any) -> str:
    """For `refuse_stale`, where the API gives no time of the last change."""
    return sha256(exact_json.canonical(value)).hexdigest()


def refuse_stale(console: Console, seen: str | None, current: str) -> None:
    """Raise Refused where somebody else has changed since what the form shows. `seen` comes from the form.

    Members who may not write get the API's own refusal instead.
    """
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
