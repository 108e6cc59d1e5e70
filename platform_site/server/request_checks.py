"""Checks of a request head before Django sees it: the host, the method, repeated headers and the length of the body."""

import re
from functools import lru_cache
from typing import Any, Final

from platform_site.http import errors

BODY_LIMIT: Final = 1024 * 1024

_METHOD: Final = re.compile(r"[A-Z]{1,16}", re.ASCII)


def is_too_large(stated: str) -> bool:
    digits = stated.strip().lstrip("0")
    return len(digits) > len(str(BODY_LIMIT)) or int(digits or "0") > BODY_LIMIT


def check_host(named: str | None, meta: dict[str, Any]) -> None:
    """One host and a valid port (RFC 9112, 3.2); Django checks which host. Raises ApiError."""
    if named is None and meta["SERVER_PROTOCOL"] == "HTTP/1.1":
        raise errors.InvalidRequest("The Host header is missing.")
    host = meta.get("HTTP_HOST")
    if host is not None and not (_is_valid_host_cached(host) if len(host) <= 255 else _is_valid_host(host)):
        raise errors.InvalidRequest("The Host header is empty, or its port is invalid.")


def _is_valid_host(host: str) -> bool:
    name, colon, port = host.rpartition(":")
    if not colon or port.endswith("]"):  # no port, or the end of an IPv6 address
        return host != ""
    return name != "" and (not port.isdigit() or (len(port) < 6 and int(port) < 65536))


_is_valid_host_cached: Final = lru_cache(maxsize=512)(_is_valid_host)


def check_request(meta: dict[str, Any], path: str, repeated: frozenset[str]) -> None:
    if not path.startswith("/"):
        raise errors.InvalidRequest("The request target must be a path.")
    if "\0" in path or "�" in path:
        raise errors.NotFound
    if not _METHOD.fullmatch(meta["REQUEST_METHOD"]):
        raise errors.MethodNotAllowed
    if repeated & {"host", "content-length", "content-type", "transfer-encoding"}:
        raise errors.InvalidRequest("Host, Content-Length, Content-Type and Transfer-Encoding may occur only once.")
    if "CONTENT_LENGTH" in meta and "HTTP_TRANSFER_ENCODING" in meta:
        raise errors.InvalidRequest("The length of the body is given twice, by Content-Length and Transfer-Encoding.")
    if meta.get("HTTP_TRANSFER_ENCODING", "chunked").strip().lower() != "chunked":
        raise errors.InvalidRequest("The only supported Transfer-Encoding is chunked.")
