"""A caller's `where`: bounded (8 KB in a query parameter, 64 KB in a body), parsed, and cached."""

import json
from collections.abc import Callable
from typing import Any, Final, NoReturn

import orjson

from platform_site.concurrency.memo import Memo
from platform_site.http.bodies import DuplicateName, object_of
from platform_site.http.errors import ValidationFailed
from platform_site.http.exact_json import read_float
from rows.rules.conditions import NO_FILTER, Filter
from rows.rules.grammar import TOO_DEEP, read_filter
from rows.rules.name_resolver import InvalidCondition, NameResolver, shown

MAX_TEXT_BYTES: Final = 8 * 1024
MAX_BODY_BYTES: Final = 64 * 1024

_MEMOIZED_LENGTH: Final = 512


def _no_constant(word: str) -> NoReturn:
    raise ValueError(word)


_DECODE: Final[Callable[[str], Any]] = json.JSONDecoder(
    object_pairs_hook=object_of, parse_constant=_no_constant, parse_float=read_float
).decode
_filters: Final[Memo[tuple[int, str, str], Filter]] = Memo(2_048)


def parse_where(where: Any, table: str, resolver: NameResolver, field: str = "where") -> Filter:
    """`where`: text, an object, or None. Raises ValidationFailed on `field`; messages start with the node's path."""
    if where is None:
        return NO_FILTER
    try:
        if not isinstance(where, str):
            _check_size(where)
            return read_filter(where, table, resolver)
        key = (resolver.token, table, where)
        found = _filters.get(key)
        if found is None:
            found = read_filter(_decode(where), table, resolver)
            if len(where) <= _MEMOIZED_LENGTH:
                _filters.put(key, found)
        return found
    except InvalidCondition as error:
        path = f"{shown(error.path)}: " if error.path else ""
        raise ValidationFailed.of(field, error.code, f"{path}{error.message}") from None


def _decode(text: str) -> Any:
    if len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
        raise InvalidCondition(
            "", "too_long", f"must have at most {MAX_TEXT_BYTES} bytes; a longer filter can be sent as a body."
        )
    try:
        return _DECODE(text)
    except DuplicateName:
        raise InvalidCondition("", "invalid", "repeated key in a JSON object.") from None
    except RecursionError:
        raise InvalidCondition("", "too_deep", TOO_DEEP) from None
    except ValueError:
        raise InvalidCondition("", "invalid_json", 'must be a JSON object, such as {"done": false}.') from None


def _check_size(document: Any) -> None:
    try:
        size = len(orjson.dumps(document))
    except (TypeError, ValueError):  # integers of more than 64 bits, more than 254 levels: refused in a moment by name
        try:
            size = len(json.dumps(document, default=str))
        except (RecursionError, ValueError):
            size = MAX_BODY_BYTES + 1
    if size > MAX_BODY_BYTES:
        raise InvalidCondition("", "too_long", f"must have at most {MAX_BODY_BYTES} bytes as JSON.")
