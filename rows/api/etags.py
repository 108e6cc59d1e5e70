"""The headers `If-Match` and `If-None-Match` (RFC 9110, section 13.1), as far as rows use them. A row's entity tag is
the SHA-256, in hex, of the row as the caller sees it without `with`: 64 digits in quotes. Tags match by value: a proxy
that compresses may make a tag weak (`W/"…"`) or add the coding to it (`"…-gzip"`). An endpoint that cannot check a
condition refuses it, because its sender wants to protect the present state."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from platform_site.http.errors import FieldError, ValidationFailed

_TAG: Final = re.compile(r'(?:W/)?"([\x21\x23-\x7e]*?)(?:(?:--?|;)(?:gzip|br|zstd|deflate))?"', re.ASCII)
MAX_TAGS: Final = 100
ONLY_IF_MATCH: Final = "What is there is changed or deleted under an If-Match."


def read_if_match(header: str | None) -> tuple[str, ...] | None:
    """The digests of which the row must have one; None where anything may be there (`*`, or no header). A header that
    cannot be read matches nothing: to go on regardless would overwrite what the client meant to keep."""
    if header is None or header.strip() == "*":
        return None
    return values(header)[:MAX_TAGS]


def values(header: str) -> tuple[str, ...]:
    """The text in the quotes of each tag."""
    return tuple(found[1] for found in _TAG.finditer(header))


def refuse(meta: Mapping[str, Any], names: Sequence[str], advice: str) -> None:
    """Raise ValidationFailed if the request has one of the headers `names`. `meta` is `request.META`; `advice` says
    what to do instead."""
    if sent := [FieldError(name, "not_allowed", advice) for name in names if _META[name] in meta]:
        raise ValidationFailed(fields=sent)


_META: Final = {"If-Match": "HTTP_IF_MATCH", "If-None-Match": "HTTP_IF_NONE_MATCH"}


def is_unchanged(header: str | None, etag: str | None) -> bool:
    """Whether `If-None-Match` names `etag` (in its quotes): the client has what it would get."""
    if header is None or etag is None:
        return False
    if header.strip() == "*":
        return True
    return etag.strip('"') in values(header)
