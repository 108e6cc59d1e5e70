"""Forms whose values the API checks; its errors are shown at their fields."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from platform_site.developer_console.frame import Console
from platform_site.http import exact_json
from platform_site.http.errors import ApiError, FieldError, PreconditionFailed, ValidationFailed

_INTEGER_DIGITS: Final = 18
_WORD_ENDS: Final = re.compile(r"[\s,]+")


@dataclass(frozen=True, slots=True)
class Field:
    """One control. `kind`: an input's type, or `textarea` (a list, one item per line), `code` (JSON or another
    `language`), `select`, `checkbox`, `secret`. A `password` or multi-line `secret` is never sent back."""

    name: str
    label: str
    kind: str = "text"
    help: str = ""
    choices: Sequence[tuple[str, str]] = ()
    required: bool = False
    max_length: int | None = None
    placeholder: str = ""
    rows: int = 3
    suggestions: Sequence[str] = ()
    language: str = "json"
    chooses_types: bool = False
    """Its value shows fields that have it among their `types`."""
    types: Sequence[str] = ()

    def shown(self, value: Any) -> Any:
        """The API's value, as the control has it."""
        if self.kind == "code" and self.language == "json":
            return "" if value is None else exact_json.dumps(value, indent=True)
        if self.kind == "textarea" and isinstance(value, list):
            return "\n".join(map(str, value))
        return "" if value is None else value

    def read(self, submitted: Mapping[str, str]) -> Any:
        """The submitted value, as the API has it."""
        text = submitted.get(self.name, "")
        if self.kind == "checkbox":
            return self.name in submitted
        if self.kind == "textarea":
            return lines_of(text)
        if self.kind == "code" and self.language == "json":
            return json_of(text, self.name)
        if self.kind == "datetime-local":
            return moment_of(text)
        return integer_of(text) if self.kind == "number" else text.strip().replace("\r\n", "\n")


@dataclass(frozen=True, slots=True)
class BoundField:
    field: Field
    id: str
    value: Any
    errors: list[str]


@dataclass
class Form:
    """Shows `submitted` after an error, else `values`."""

    name: str
    fields: Sequence[Field]
    values: Mapping[str, Any] = field(default_factory=dict)
    refusal: ApiError | None = None
    submitted: Mapping[str, str] | None = None
    fingerprint: str = ""
    """For `refuse_stale`."""

    def __iter__(self) -> Iterator[BoundField]:
        for each in self.fields:
            value = each.shown(self.values.get(each.name))
            if self.submitted is not None and each.kind not in ("password", "secret"):
                value = each.name in self.submitted if each.kind == "checkbox" else self.submitted.get(each.name, "")
            yield BoundField(each, f"{self.name}-{each.name}", value, list(self._errors_of(each)))

    def _errors_of(self, field: Field) -> Iterator[str]:
        """With the line or the path, if inside the field's value."""
        lines = lines_of(self.submitted.get(field.name, "")) if self.submitted and field.kind == "textarea" else []
        paths = {field.name: "", **{f"{field.name}.{number}": f"{line}: " for number, line in enumerate(lines)}}
        for each in self.refusal.fields if self.refusal else ():
            if f"{each.field}.".startswith(f"{field.name}."):
                yield f"{paths.get(each.field, f'{each.field}: ')}{each.message}"

    @property
    def other_errors(self) -> list[FieldError]:
        shown = tuple(f"{each.name}." for each in self.fields)
        found = self.refusal.fields if self.refusal else ()
        return [each for each in found if not f"{each.field}.".startswith(shown)]


def form_of(console: Console, name: str, fields: Sequence[Field], values: Mapping[str, Any]) -> Form:
    """With errors and submitted values, if this form was refused."""
    if console.refused_action != name:
        return Form(name, fields, values)
    return Form(name, fields, values, console.refusal, console.request.POST)


def edit_form_of(console: Console, name: str, fields: Sequence[Field], values: Mapping[str, Any]) -> Form:
    """A form whose action calls `refuse_stale`."""
    form = form_of(console, name, fields, values)
    form.fingerprint = fingerprint_of(fields, values)
    return form


def invalid(field_name: str, message: str, *, summary: str = "Some fields are invalid.") -> ValidationFailed:
    return ValidationFailed(summary, fields=[FieldError(field_name, "invalid", message)])


def read(fields: Sequence[Field], submitted: Mapping[str, str]) -> dict[str, Any]:
    return {each.name: each.read(submitted) for each in fields}


def fingerprint(value: Any) -> str:
    return sha256(exact_json.canonical(value)).hexdigest()


def fingerprint_of(fields: Sequence[Field], values: Mapping[str, Any]) -> str:
    return fingerprint({each.name: values.get(each.name) for each in fields})


def refuse_stale(console: Console, fields: Sequence[Field], values: Mapping[str, Any]) -> None:
    """Raise PreconditionFailed if these are not the values that the form has shown. Members who may not write get the
    API's refusal."""
    if console.may_write and console.request.POST.get("fingerprint") != fingerprint_of(fields, values):
        message = "Someone else changed this in the meantime. Your values are below: save again to overwrite theirs."
        raise PreconditionFailed(message)


def json_of(text: str, field_name: str) -> Any:
    if not text.strip():
        return None
    try:
        return exact_json.loads(text, parse_float=exact_json.read_exact_float)
    except exact_json.RoundedNumber as error:
        raise invalid(field_name, str(error)) from None
    except ValueError as error:
        raise invalid(field_name, f"This is not JSON: {error}") from None


def integer_of(text: str) -> int | str:
    """The number, or the text for the API to refuse."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _INTEGER_DIGITS else text


def moment_of(text: str) -> str:
    """`datetime-local` as UTC; anything else for the API to refuse."""
    text = text.strip()
    return f"{text}Z" if text and "Z" not in text and "+" not in text else text


def expiry_of(days: str, choices: Sequence[tuple[str, str]]) -> str:
    if days not in dict(choices):
        raise invalid("expires", "Choose one of the times.")
    return (datetime.now(UTC) + timedelta(days=int(days))).isoformat()


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def words(submitted: Mapping[str, str], name: str) -> list[str]:
    return [each for each in _WORD_ENDS.split(submitted.get(name, "").strip()) if each]
