"""The console's session: a session of the account (`accounts.users.sessions`), named by a signed cookie, checked by
every call of the API. The cookie is not sent to `/admin`."""

import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponse

from platform_site.http.middleware.csrf import DEVELOPER_CONSOLE

COOKIE: Final = "console_session"
PENDING_COOKIE: Final = "console_pending"
PENDING_SECONDS: Final = 300
_SALT: Final = "platform_site.developer_console.2"
"""Its number changes with the fields of `SignedIn`: earlier cookies then end."""
_RENEW_AFTER: Final = 60


@dataclass(frozen=True, slots=True)
class SignedIn:
    user_id: str
    session_id: str
    began: float
    seen: float
    second_factor: int | None = None
    """The id of the device that showed a code at its start."""


def start(response: HttpResponse, *, user_id: str, session_id: str, second_factor: int | None) -> None:
    now = time.time()
    _write(response, SignedIn(user_id, session_id, now, now, second_factor))


def read(request: HttpRequest) -> SignedIn | None:
    values = _unsigned(request, COOKIE, settings.CONSOLE_SESSION_SECONDS)
    if values is None:
        return None
    found, now = SignedIn(**values), time.time()
    if now - found.began > settings.CONSOLE_SESSION_SECONDS or now - found.seen > settings.CONSOLE_IDLE_SECONDS:
        return None
    return found


def keep_alive(response: HttpResponse, signed_in: SignedIn) -> None:
    now = time.time()
    if now - signed_in.seen > min(_RENEW_AFTER, settings.CONSOLE_IDLE_SECONDS / 2):
        _write(response, replace(signed_in, seen=now))


def end(response: HttpResponse, cookie: str = COOKIE) -> None:
    response.delete_cookie(cookie, path=DEVELOPER_CONSOLE, samesite="Lax")


def start_pending(response: HttpResponse, values: dict[str, str]) -> None:
    _set(response, PENDING_COOKIE, values, PENDING_SECONDS)


def read_pending(request: HttpRequest) -> dict[str, str] | None:
    return _unsigned(request, PENDING_COOKIE, PENDING_SECONDS)


def _write(response: HttpResponse, signed_in: SignedIn) -> None:
    _set(response, COOKIE, asdict(signed_in), settings.CONSOLE_SESSION_SECONDS)


def _set(response: HttpResponse, name: str, values: dict[str, Any], seconds: int) -> None:
    response.set_cookie(
        name,
        signing.dumps(values, salt=f"{_SALT}.{name}"),
        max_age=seconds,
        path=DEVELOPER_CONSOLE,
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )


def _unsigned(request: HttpRequest, name: str, seconds: int) -> dict[str, Any] | None:
    try:
        return dict(signing.loads(request.COOKIES.get(name, ""), salt=f"{_SALT}.{name}", max_age=seconds))
    except signing.BadSignature:
        return None
