r"""Converts JSON values to the text that PostgreSQL casts, and validates them by the type of the column.

`rows.rules.operand_reader` reads the operands of filters and rules here, `column_values` the cells of writes, and
`rows.rules.principal` the values of variables, so that one type means one thing everywhere. Nothing that passed here
makes PostgreSQL answer with a data error: NUL, lone surrogates, 2^63, the year 0 and more than 500 digits are refused.

A checked value has two forms. *Python's* is what `rows.rules.evaluator` compares: str, int, Decimal, float, bool, date,
datetime in UTC, parsed JSON, and tuples of these. *Wire* is text bytes for an untyped parameter under an explicit cast.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, get_args

from platform_site.http.errors import FieldError
from platform_site.http.exact_json import LongFloat
from rows.schema.types import Type

MAX_JSON_DEPTH: Final = 64

ELEMENTS: Final[Mapping[Type, Type]] = {
    array: array.removesuffix("[]") for array in get_args(Type) if array.endswith("[]")
}
ARRAYS: Final[Mapping[Type, Type]] = {element: array for array, element in ELEMENTS.items()}
_DECIMAL: Final = re.compile(r"-?[0-9]{1,500}(\.[0-9]{1,500})?", re.ASCII)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_TIMESTAMP: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?", re.ASCII
)
_LOST_PLUS: Final = re.compile(r":[0-9.]+ [0-9]{2}:[0-9]{2}\Z", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**63 - 1
_SAFE_FLOAT_DIGITS: Final = 15


class InvalidValue(Exception):
    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(message)

    @property
    def continued(self) -> str:
        return self.message[0].lower() + self.message[1:]

    def of(self, field: str) -> FieldError:
        return FieldError(field, self.code, self.message)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidValue("wrong_type", "Must be a string.")
    if "\0" in value:
        raise InvalidValue("invalid", "Must not contain NUL characters.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidValue("invalid", "Must be valid Unicode text.") from None
    return value


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidValue("wrong_type", "Must be an integer.")
    if not MIN_INTEGER <= value <= MAX_INTEGER:
        raise InvalidValue("out_of_range", "Must be a 64-bit integer.")
    return value


def _decimal(value: Any) -> Decimal:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return Decimal(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) < 10**500:
            return Decimal(value)
        raise InvalidValue("out_of_range", "Has too many digits.")
    if isinstance(value, float) and math.isfinite(value):
        exact = Decimal(repr(value))
        if len(exact.as_tuple().digits) <= _SAFE_FLOAT_DIGITS and not _is_rounded(value, exact):
            return exact
        raise InvalidValue("invalid", "Has too many digits for a JSON number; send it as a string.")
    raise InvalidValue("wrong_type", 'Must be a decimal number as a string, such as "12.50".')


def _is_rounded(value: float, exact: Decimal) -> bool:
    try:
        return isinstance(value, LongFloat) and Decimal(value.text) != exact
    except InvalidOperation:  # an exponent beyond those of Decimal
        return True


def _float(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidValue("wrong_type", "Must be a number.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidValue("out_of_range", "Must be a finite number.")
    return number + 0.0  # -0.0 becomes 0.0: PostgreSQL takes them for equal, so one must not change into the other


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue("wrong_type", "Must be true or false.")
    return value


def _date(value: Any) -> date:
    if isinstance(value, str) and _DATE.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise InvalidValue("invalid", "There is no such day.") from None
    raise InvalidValue("wrong_type", 'Must be a date, such as "2026-03-01".')


def _timestamp(value: Any) -> datetime:
    if not isinstance(value, str) or not (found := _TIMESTAMP.fullmatch(value)):
        raise InvalidValue(
            "wrong_type",
            'Must be a timestamp with a time zone, such as "2026-03-01T12:00:00Z".'
            + (' In a URL, "+" means a space: write "%2B".' if _LOST_PLUS.search(str(value)) else ""),
        )
    if not found[3]:
        raise InvalidValue("no_time_zone", 'Must name its time zone: "Z" or an offset such as "+02:00" at the end.')
    try:
        return datetime.fromisoformat(value).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidValue("invalid", "There is no such moment.") from None


def _uuid(value: Any) -> str:
    if isinstance(value, str) and _UUID.fullmatch(value):
        return value.lower()
    raise InvalidValue("wrong_type", 'Must be a UUID, such as "6b1f1c1e-3c1c-4d0e-9d6c-0d2b8a7f5e11".')


def _json(value: Any) -> Any:
    """Refuses what `jsonb` cannot hold, and depth, without recursion."""
    waiting = [(value, 1)]
    while waiting:
        at, depth = waiting.pop()
        if isinstance(at, str):
            _text(at)
        elif isinstance(at, float):
            if not math.isfinite(at):
                raise InvalidValue("out_of_range", "Numbers must be finite.")
        elif isinstance(at, Mapping | list):
            if depth > MAX_JSON_DEPTH:
                raise InvalidValue("too_deep", f"Must not be nested more than {MAX_JSON_DEPTH} levels deep.")
            inside = at.values() if isinstance(at, Mapping) else at
            if isinstance(at, Mapping):
                for key in at:
                    _text(key)
            waiting.extend((part, depth + 1) for part in inside)
        elif at is not None and not isinstance(at, int):
            raise InvalidValue("wrong_type", "Must be a JSON value.")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidValue("wrong_type", "Must be a list of strings.")
    try:
        return tuple(map(_text, value))
    except InvalidValue as error:
        if error.code == "wrong_type":
            raise InvalidValue("wrong_type", "Must be a list of strings.") from None
        raise


READERS: Final[Mapping[Type, Callable[[Any], Any]]] = {
    "text": _text,
    "bigint": _integer,
    "numeric": _decimal,
    "float8": _float,
    "boolean": _boolean,
    "date": _date,
    "timestamptz": _timestamp,
    "uuid": _uuid,
    "jsonb": _json,
    "text[]": _texts,
}


def read(type_: Type, value: Any) -> Any:
    """The Python value of the JSON `value`; arrays without nulls. Raises InvalidValue, also for null."""
    if value is None:
        raise InvalidValue("null", "Must not be null.")
    reader = READERS.get(type_)
    if reader is not None:
        return reader(value)
    if not isinstance(value, list | tuple):
        raise InvalidValue("wrong_type", "Must be a list.")
    return tuple(map(READERS[ELEMENTS[type_]], value))


def _wire_json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if ".0" in text:  # to jsonb 1.0 equals 1 and keeps its zero: equal values must have equal bytes
        text = json.dumps(floats_as_integers(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()


def floats_as_integers(value: Any) -> Any:
    """`value` with whole floats as integers; at most MAX_JSON_DEPTH deep."""
    if isinstance(value, float):  # from 1e16 on it is written with an exponent, so without a zero
        return int(value) if value.is_integer() and abs(value) < 1e16 else value
    if isinstance(value, Mapping):
        return {key: floats_as_integers(part) for key, part in value.items()}
    return [floats_as_integers(part) for part in value] if isinstance(value, list) else value


def wire_texts(parts: Sequence[bytes | None]) -> bytes:
    # Every text in quotes: no word (NULL), blank, brace or comma inside can then mean anything.
    if parts and None not in parts:
        text = b'","'.join(parts)  # type: ignore[arg-type]
        if b"\\" not in text and text.count(b'"') == 2 * len(parts) - 2:
            return b'{"' + text + b'"}'
    quoted = [
        b"NULL" if part is None else b'"' + part.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"' for part in parts
    ]
    return b"{" + b",".join(quoted) + b"}"


def _wire_date(value: date) -> bytes:
    return value.isoformat().encode()


_WRITERS: Final[Mapping[Type, Callable[[Any], bytes]]] = {
    "text": str.encode,
    "bigint": lambda value: b"%d" % value,
    "numeric": lambda value: format(value, "f").encode(),
    "float8": lambda value: repr(value).encode(),
    "boolean": lambda value: b"true" if value else b"false",
    "date": _wire_date,
    "timestamptz": _wire_date,
    "uuid": str.encode,
    "jsonb": _wire_json,
}


def wire(type_: Type, value: Any) -> bytes:
    """The text bytes for a cast to `type_`; not for None."""
    element = ELEMENTS.get(type_)
    if element is not None:
        return wire_texts(list(map(_WRITERS[element], value)))
    return _WRITERS[type_](value)
