"""Typed readers of the environment. A value that cannot be read stops the start with a sentence that names it."""

import math
import os
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

MOST: Final = 2_147_483_647
"""What a number may be that has no bound of its own: the largest that PostgreSQL's settings and C take for one."""


def text(name: str, default: str | None = None) -> str | None:
    """The value of `name`, or `default` where it is unset or empty."""
    return os.environ.get(name) or default


def boolean(name: str, default: bool = False) -> bool:
    """`1/true/yes/on` or `0/false/no/off`, in any case. Raises ImproperlyConfigured for another word."""
    value = (os.environ.get(name) or "").lower()
    if not value:
        return default
    if value in {"1", "true", "yes", "on"}:
        return True
    if value in {"0", "false", "no", "off"}:
        return False
    raise ImproperlyConfigured(f"{name} must be a boolean such as 1 or 0, not {value!r}")


def number(name: str, default: float, *, minimum: float, maximum: float = MOST) -> float:
    """A number from `minimum` to `maximum`. Raises ImproperlyConfigured for anything else."""
    value = os.environ.get(name)
    return default if not value else _within(name, value, minimum, maximum)


def numbers(name: str, *, minimum: float) -> list[float]:
    """A comma-separated list of numbers from `minimum` on. Raises ImproperlyConfigured for anything else."""
    return [_within(name, word, minimum, MOST) for word in words(name)]


def integer(name: str, default: int, *, minimum: int, maximum: int = MOST) -> int:
    """A whole number from `minimum` to `maximum`. Raises ImproperlyConfigured for anything else."""
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
    """A comma-separated list, blanks dropped."""
    value = os.environ.get(name)
    if not value:
        return list(default)
    return [word.strip() for word in value.split(",") if word.strip()]


def postgres_urls(name: str) -> list[str]:
    """A comma-separated list of `postgresql://` URLs, in which libpq's lists of hosts have commas of their own."""
    return re.split(r"\s*,\s*(?=postgres(?:ql)?://)", value.strip()) if (value := os.environ.get(name)) else []


def choice(name: str, options: tuple[str, ...], default: str) -> str:
    """One of `options`. Raises ImproperlyConfigured for another word."""
    value = os.environ.get(name) or default
    if value not in options:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(options)}, not {value!r}")
    return value


def origin(name: str, default: str) -> str:
    """`https://host` or `http://host:port`; a slash at its end is dropped. Raises ImproperlyConfigured for more or less
    than that."""
    value = (os.environ.get(name) or default).removesuffix("/")
    if re.fullmatch(r"https?://[^\s/?#@]+", value) is None:
        raise ImproperlyConfigured(f"{name} must be a URL such as https://example.com without a path, not {value!r}")
    return value


def postgres(name: str, url: str) -> dict[str, str]:
    """Django's NAME, USER, PASSWORD, HOST and PORT of a `postgresql://` URL. A Unix socket directory goes into the
    query (`postgresql://user:password@/name?host=/run/pg`), as libpq has it. Other query parameters are kept under
    `OPTIONS:` keys for libpq (`sslmode`, `sslrootcert`)."""
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"}:
        raise ImproperlyConfigured(f"{name} must start with postgresql://, not {parts.scheme}://")
    query = dict(pair.partition("=")[::2] for pair in parts.query.split("&") if pair)
    settings = {
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(query.pop("host", "") or parts.hostname or ""),
        "PORT": query.pop("port", "") or str(parts.port or ""),
    }
    if not settings["NAME"]:
        raise ImproperlyConfigured(f"{name} names no database")
    return settings | {f"OPTIONS:{key}": unquote(value) for key, value in query.items()}
