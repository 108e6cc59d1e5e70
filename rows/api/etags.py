"""The headers `If-Match` and `If-None-Match` (RFC 9110, section 13.1). A row's entity tag is the SHA-256, in hex, of
the row as the caller sees it without `with`. Tags match by value, since proxies may make them weak or add a coding. An
endpoint that cannot check a condition refuses it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.http import HttpRequest, HttpResponseNotModified

from platform_site.http.errors import FieldError, ValidationFailed

_TAG: Final = re.compile(r'(?:W/)?"([\x21\x23-\x7e]*?)(?:(?:--?|;)(?:gzip|br|zstd|deflate))?"', re.ASCII)
MAX_TAGS: Final = 100
ONLY_IF_MATCH: Final = "Existing rows are changed and deleted with If-Match."


def read_if_match(header: str | None) -> tuple[str, ...] | None:
    """The accepted digests; None for `*` or no header. An unreadable header matches nothing."""
    if header is None or header.strip() == "*":
        return None
    return values(header)[:MAX_TAGS]


def values(header: str) -> tuple[str, ...]:
    return tuple(found[1] for found in _TAG.finditer(header))


def refuse(meta: Mapping[str, Any], names: Sequence[str], advice: str) -> None:
    """Raises ValidationFailed if the request has one of the headers. `advice` says what to do instead."""
    if sent := [FieldError(name, "not_allowed", advice) for name in names if _META[name] in meta]:
        raise ValidationFailed(fields=sent)


_META: Final = {"If-Match": "HTTP_IF_MATCH", "If-None-Match": "HTTP_IF_NONE_MATCH"}


def not_modified(request: HttpRequest, headers: Mapping[str, str]) -> HttpResponseNotModified | None:
    is_named = is_unchanged(request.META.get("HTTP_IF_NONE_MATCH"), headers["ETag"])
    return HttpResponseNotModified(headers=headers) if is_named else None


def is_unchanged(header: str | None, etag: str | None) -> bool:
    if header is None or etag is None:
        return False
    if header.strip() == "*":
        return True
    return etag.strip('"') in values(header)
