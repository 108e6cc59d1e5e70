"""Typed readers of environment variables. They raise ImproperlyConfigured with a sentence that names an invalid one."""

import math
import os
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured
from psycopg import pq

_LIBPQ: Final = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
MAX_INTEGER: Final = 2_147_483_647
"""The largest of PostgreSQL's settings and C's int."""


def text(name: str, default: str | None = None) -> str | None:
    return os.environ.get(name) or default


def boolean(name: str, default: bool = False) -> bool:
    value = (os.environ.get(name) or "").lower()
    if not value:
        return default
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"0", "false", "no", "off"}:
        return False
    raise ImproperlyConfigured(f"{name} must be a boolean such as 1 or 0, not {value!r}")


def number(name: str, default: float, *, minimum: float, maximum: float = MAX_INTEGER) -> float:
    value = os.environ.get(name)
    return default if not value else _within(name, value, minimum, maximum)


def numbers(name: str, *, minimum: float) -> list[float]:
    return [_within(name, word, minimum, MAX_INTEGER) for word in words(name)]


def integer(name: str, default: int, *, minimum: int, maximum: int = MAX_INTEGER) -> int:
    parsed = number(name, default, minimum=minimum, maximum=maximum)
    if parsed != int(parsed):
        raise ImproperlyConfigured(f"{name} must be a whole number, not {os.environ.get(name)!r}")
    return int(parsed)


def _within(name: str, value: str, minimum: float, maximum: float) -> float:
    try:
        parsed = float(value)
    except ValueError:
        parsed = math.nan
    if not math.isfinite(parsed):
        raise ImproperlyConfigured(f"{name} must be a number, not {value!r}")
    if parsed < minimum:
        raise ImproperlyConfigured(f"{name} must be at least {minimum:g}, not {value!r}")
    if parsed > maximum:
        raise ImproperlyConfigured(f"{name} must be at most {maximum:.15g}, not {value!r}")
    return parsed


def words(name: str, default: Iterable[str] = ()) -> list[str]:
    value = os.environ.get(name)
    if not value:
        return list(default)
    return [word.strip() for word in value.split(",") if word.strip()]


def postgres_urls(name: str) -> list[str]:
    """Comma-separated `postgresql://` URLs, which may contain commas."""
    return re.split(r"\s*,\s*(?=postgres(?:ql)?://)", value.strip()) if (value := os.environ.get(name)) else []


def choice(name: str, options: tuple[str, ...], default: str) -> str:
    value = os.environ.get(name) or default
    if value not in options:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(options)}, not {value!r}")
    return value


def domain(name: str, default: str) -> str:
    value = os.environ.get(name) or default
    if re.fullmatch(r"[\w-]+(\.[\w-]+)*", value) is None:
        raise ImproperlyConfigured(f"{name} must be a domain such as api.example.com, not {value!r}")
    return value


def hosts(name: str, default: Iterable[str] = ()) -> list[str]:
    """As Django's ALLOWED_HOSTS: names, IPs, `.example.com` with its subdomains, `*`."""
    found = words(name, default)
    for word in found:
        if re.fullmatch(r"\*|\.?[\w-]+(\.[\w-]+)*|\[[\da-f:.]+\]", word, re.IGNORECASE) is None:
            raise ImproperlyConfigured(
                f"{name} must be names such as api.example.com or .example.com (subdomains, too), without port,"
                f" not {word!r}"
            )
    return found


def server(name: str) -> str:
    """A name or IP, or the empty string."""
    value = os.environ.get(name) or ""
    if re.fullmatch(r"[\w.-]*|[\da-f:.]*:[\da-f:.]*", value, re.IGNORECASE) is None:
        raise ImproperlyConfigured(f"{name} must be a name or an IP, without port, not {value!r}")
    return value


def origin(name: str, default: str) -> str:
    """`https://host` or `http://host:port`, without a trailing slash."""
    return _origin(name, os.environ.get(name) or default)


def origins(name: str, default: Iterable[str] = ()) -> list[str]:
    return [_origin(name, word) for word in words(name, default)]


def _origin(name: str, value: str) -> str:
    value = value.removesuffix("/")
    if re.fullmatch(r"https?://[^\s/?#@]+", value) is None:
        raise ImproperlyConfigured(f"{name} must be a URL such as https://example.com without a path, not {value!r}")
    return value


def redis(name: str, url: str) -> str:
    parts = _split(name, url)
    if parts.scheme not in {"redis", "rediss", "unix"}:
        raise ImproperlyConfigured(f"{name} must start with redis://, rediss:// or unix://, not {parts.scheme}://")
    # The worker would refuse such a name, while the web would use database 0.
    if parts.scheme != "unix" and not re.fullmatch(r"(/\d*)?", parts.path):
        raise ImproperlyConfigured(f"{name} must end with the number of a database, such as /0")
    return url


def _split(name: str, url: str) -> SplitResult:
    """Raises ImproperlyConfigured without the URL, which has a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        if "@" in parts.path:  # the rest of a password with "/"
            raise ValueError
    except ValueError:
        raise ImproperlyConfigured(
            f"{name} is not a URL with one host and port. In a password, write / ? # [ ] as %2F %3F %23 %5B %5D"
        ) from None
    return parts


def postgres(name: str, url: str) -> dict[str, str]:
    """Django's NAME, USER, PASSWORD, HOST and PORT of a `postgresql://` URL, as libpq reads it (`?host=/run/pg` for a
    socket). Other parameters are `OPTIONS:` keys (`sslmode`, `sslrootcert`)."""
    parts = _split(name, url)
    if parts.scheme not in {"postgres", "postgresql"}:
        raise ImproperlyConfigured(f"{name} must start with postgresql://, not {parts.scheme}://")
    query = dict(parse_qsl(parts.query.replace("+", "%2B"), keep_blank_values=True))  # for libpq "+" is no space
    settings = {
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.pop("host", "") or unquote(parts.hostname or ""),
        "PORT": query.pop("port", "") or str(parts.port or ""),
    }
    if not settings["NAME"]:
        raise ImproperlyConfigured(f"{name} names no database")
    if unknown := sorted(query.keys() - _LIBPQ):
        raise ImproperlyConfigured(f"{name} has the parameter {unknown[0]!r}, which libpq does not know")
    return settings | {f"OPTIONS:{key}": value for key, value in query.items()}
