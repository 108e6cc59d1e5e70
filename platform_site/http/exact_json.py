"""JSON with exact integers of any size, for rows: orjson reads those beyond 64 bits as floats."""

import json
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import orjson

_LONG: Final = re.compile(rb"\d{19}")
_LONG_FLOAT: Final = re.compile(rb"\d[\d.]{16}|\d[eE]")
_ALWAYS_EXACT: Final = 16
"""Characters of a number: 15 digits and the point."""


class LongFloat(float):
    """A number whose text may have more digits than the float. orjson cannot write it."""

    __slots__ = ("text",)
    text: str


def read_float(text: str) -> float:
    """As `parse_float` of a decoder: LongFloat for many digits."""
    if len(text) <= _ALWAYS_EXACT and "e" not in text and "E" not in text:  # 1e-400 is 0.0 as a float
        return float(text)
    found = LongFloat(text)
    found.text = text
    return found


class RoundedNumber(ValueError):
    def __init__(self, text: str) -> None:
        shown = text if len(text) <= 40 else f"{text[:40]}…"
        super().__init__(f"The number {shown} would be rounded: write fewer digits or, for a decimal, a string.")


def read_exact_float(text: str) -> float:
    """As `read_float`. Raises RoundedNumber."""
    number = read_float(text)
    if not isinstance(number, LongFloat):
        return number
    try:
        is_exact = Decimal(text) == Decimal(repr(float(number)))
    except InvalidOperation:  # an exponent beyond those of Decimal
        is_exact = False
    if not is_exact:
        raise RoundedNumber(text)
    return float(number)


def loads(text: bytes | str, *, parse_float: Callable[[str], float] | None = None) -> Any:
    """`parse_float`: `read_float` or `read_exact_float`, for numbers with many digits."""
    data = text.encode() if isinstance(text, str) else text
    value = orjson.loads(data)
    if _LONG_FLOAT.search(data) is None:
        parse_float = None
    if parse_float is None and _LONG.search(data) is None:
        return value
    try:
        return json.loads(data, parse_float=parse_float)
    except RecursionError as error:  # the standard library's parser has a lower limit
        raise ValueError("the JSON is nested too deep for integers of its size") from error


def dumps(value: Any, *, indent: bool = False, default: Callable[[Any], Any] | None = None) -> str:
    try:
        return orjson.dumps(value, default, orjson.OPT_INDENT_2 if indent else None).decode()
    except TypeError:  # an integer beyond 64 bits
        separators = None if indent else (",", ":")
        return json.dumps(
            value, ensure_ascii=False, indent=2 if indent else None, separators=separators, default=default
        )


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def is_same(one: Any, other: Any) -> bool:
    """For Python true is equal to 1, and 1 to 1.0."""
    return one is other or canonical(one) == canonical(other)
