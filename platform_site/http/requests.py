"""The current request: its id, response headers, environment, client IP and parameters. It is opened by middleware
(`platform_site.http.middleware.api`) and by Celery's hooks (`platform_site.observability.logs`). Its `__dict__` has:

- `can_be_repeated`, `is_repeated`, `thread_share`: of the server, for waits (`platform_site.concurrency.server_hints`);
- `staff_grant_id`: of calls of the console, for authentication (`projects.staff_access`);
- `rate_limit`: of authentication, for requests that count as several (`platform_site.redis.rate_limits`);
- `freshness`: of authentication, for reads by replicas and the access log (`projects.api.replica_freshness`);
- `users_version`: of authentication, for users embedded in rows (`projects.api.users_version`);
- `caller`, `api_public`: of the viewset, for CORS and the logs; `answer_headers`: of `add_header`."""

import ipaddress
import re
from contextvars import ContextVar, Token
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qsl

from django.conf import settings
from django.http import HttpRequest

from platform_site.http.errors import FieldError, ValidationFailed
from platform_site.identity import ids

KEY_BEGINNINGS: Final = "sk|rt|oac|oal|lnk|hk|whsec"
# Text that looks like a secret is not accepted as a request id, which is in every log line.
_ID: Final = re.compile(rf"(?!(?:{KEY_BEGINNINGS})_|eyJ)[A-Za-z0-9][A-Za-z0-9._:\-]{{0,63}}", re.ASCII)
_ENVIRONMENT_LABEL: Final = re.compile(r"env-([0-9a-z]{26})", re.ASCII)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_current: Final[ContextVar[str | None]] = ContextVar("request_id", default=None)

MAX_PARAMETERS: Final = 100
UNKNOWN_CLIENT: Final = "unknown"
_MAX_CACHED_LENGTH: Final = 512
"""Parsed query strings up to this length are cached: parsing takes 15 µs."""


def current_request_id() -> str | None:
    return _current.get()


def open_request(offered: str | None = None) -> Token[str | None]:
    """Begin a request or task, with the id `offered` if valid, else a new one."""
    return _current.set(offered if offered is not None and _ID.fullmatch(offered) else ids.new("req"))


def close_request(token: Token[str | None]) -> None:
    _current.reset(token)


def add_header(request: HttpRequest, name: str, value: str) -> None:
    """Also on errors. `name` and `value` are printable ASCII."""
    headers: dict[str, tuple[str, str]] = request.__dict__.setdefault("answer_headers", {})
    headers[name.lower()] = (name, value)


def named_environment(request: HttpRequest) -> str | None:
    """The unchecked environment of `X-Environment`, else of the host `env-….<PLATFORM_DOMAIN>`, else None."""
    header: str | None = request.META.get("HTTP_X_ENVIRONMENT")
    if header:
        return header
    return environment_of_host(request.META.get("HTTP_HOST") or "")


def environment_of_host(host: str) -> str | None:
    """`env_…` for the host `env-….<PLATFORM_DOMAIN>`, else None."""
    if host[:4].lower() != "env-":
        return None
    label, dot, domain = host.lower().partition(".")
    if not dot or domain.partition(":")[0] != settings.PLATFORM_DOMAIN.lower():
        return None
    found = _ENVIRONMENT_LABEL.fullmatch(label)
    return f"env_{found[1]}" if found else None


def client_address(request: HttpRequest) -> str | None:
    """None on a Unix socket. `REMOTE_ADDR` is the client's, since the server (`platform_site.server.request_head`) has
    evaluated and dropped the `X-Forwarded-For` of `TRUSTED_PROXIES`. An IPv4-mapped address becomes IPv4."""
    try:
        address = ipaddress.ip_address(request.META.get("REMOTE_ADDR") or "")
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or str(address).partition("%")[0])
    return str(address)


def network_of(request: HttpRequest, bits: int = 64) -> str:
    """The unit of rate limits: an IPv4 address or an IPv6 /64."""
    address = client_address(request)
    if address is None:
        return UNKNOWN_CLIENT
    if ":" not in address:
        return address
    return str(ipaddress.ip_network((address, bits), strict=False).network_address)


def site_of(request: HttpRequest) -> str:
    """The unit of anonymous callers' shares: IPv4, or IPv6 /48, since a client often has all /64s of one."""
    return network_of(request, 48)


def read_parameters(query_string: str, allowed: frozenset[str] | None) -> dict[str, str]:
    """Raises ValidationFailed, also for a parameter that is not in `allowed`: a misspelled filter would widen a result.
    Unknown names that begin with `_` are ignored. With `allowed` None every name is accepted."""
    if not query_string:
        return {}
    if len(query_string) <= _MAX_CACHED_LENGTH:
        return dict(_cached(query_string, allowed))
    return _read(query_string, allowed)


def _read(query_string: str, allowed: frozenset[str] | None) -> dict[str, str]:
    try:
        # Bytes that are not UTF-8 become lone surrogates, so that their parameter can be named.
        pairs = parse_qsl(query_string, keep_blank_values=True, errors="surrogateescape", max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise ValidationFailed.of("query", "too_many", f"At most {MAX_PARAMETERS} query parameters.") from None
    values: dict[str, str] = {}
    wrong: dict[str, FieldError] = {}
    for name, value in pairs:
        if _SURROGATE.search(name + value):
            wrong[name] = FieldError(_printable(name), "not_utf8", "The parameter is not UTF-8.")
        elif allowed is not None and name not in allowed:
            if not name.startswith("_"):
                wrong[name] = FieldError(_printable(name), "unknown_parameter", _unknown(allowed))
        elif name in values:
            wrong[name] = FieldError(_printable(name), "repeated", "The parameter was given more than once.")
        elif "\0" in value:
            wrong[name] = FieldError(_printable(name), "invalid_characters", "NUL characters are not allowed.")
        else:
            values[name] = value
    if wrong:
        raise ValidationFailed(fields=wrong.values())
    return values


_cached: Final = lru_cache(maxsize=2048)(_read)


def _unknown(allowed: frozenset[str]) -> str:
    if not allowed:
        return "This endpoint takes no parameters."
    known = f"There is no such parameter. The parameters are {', '.join(sorted(allowed))}."
    return f'{known} A condition belongs in where, as JSON: {{"done": false}}.' if "where" in allowed else known


def _printable(name: str) -> str:
    return name.replace("\0", "").encode(errors="replace").decode()[:100]
