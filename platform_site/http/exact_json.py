"""JSON whose integers keep all their digits: a column of type json holds what the client sent, of any size. orjson
reads an integer beyond 64 bits as a float and refuses to write one. What passes rows on, or shows them, reads and
writes them here; where there is no such integer that costs orjson's time and one look for long digits."""

import json
import re
from collections.abc import Callable
from typing import Any, Final

import orjson

_LONG: Final = re.compile(rb"\d{19}")


def loads(text: bytes | str) -> Any:
    """The value of a JSON text, integers exact. Raises ValueError where it is none, as strictly as orjson."""
    data = text.encode() if isinstance(text, str) else text
    value = orjson.loads(data)
    if _LONG.search(data) is None:
        return value
    try:
        return json.loads(data)
    except RecursionError as error:  # the standard library's reader goes less deep
        raise ValueError("the JSON is nested too deep for integers of its size") from error


def dumps(value: Any, *, indent: bool = False, default: Callable[[Any], Any] | None = None) -> str:
    """The JSON text of a value, on one line or, with `indent`, by two spaces. Raises TypeError for what is no JSON and
    `default` makes nothing of."""
    try:
        return orjson.dumps(value, default, orjson.OPT_INDENT_2 if indent else None).decode()
    except TypeError:  # an integer beyond 64 bits
        separators = None if indent else (",", ":")
        return json.dumps(
            value, ensure_ascii=False, indent=2 if indent else None, separators=separators, default=default
        )


def canonical(value: Any) -> bytes:
    """The same bytes for equal JSON values, whatever the order of their keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
