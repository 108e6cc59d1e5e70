"""Redirect URIs: an exact list per environment, compared character by character (RFC 9700 2.1): no wildcards, prefixes
or normalisation. Ambiguous URIs are refused when the list is written."""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from django.db import transaction
from django.db.models import QuerySet

from accounts import audit
from accounts.audit import Actor
from accounts.directory import environments as environment_directory
from accounts.models.oauth import RedirectUri
from platform_site.http.errors import FieldError, ValidationFailed
from platform_site.identity.callers import Caller

MAX_LENGTH: Final = 500
MAX_URIS: Final = 50
RESERVED_PARAMETERS: Final = frozenset({"code", "state", "iss", "error", "error_description", "error_code"})
"""Parameters that the platform adds; a redirect URI may not have them."""
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_UNCLEAR: Final = re.compile(r"[^\x21-\x7e]|[\\<>\"^`{|}*]")
_HOST: Final = re.compile(
    r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]*[a-z0-9])?|\[[0-9a-f:.]+\]", re.ASCII
)
_OF_AN_APP: Final = re.compile(r"[a-z][a-z0-9-]*(?:\.[a-z0-9][a-z0-9-]*)+", re.ASCII)
"""An application's scheme is its domain reversed (RFC 8252 7.1), so never `javascript` or `data`."""


def fault(text: str) -> tuple[str, str] | None:
    """Code and message of why `text` is no redirect URI; None if it is one. Pure."""
    if len(text) > MAX_LENGTH:
        return "too_long", f"A redirect URI has at most {MAX_LENGTH} characters."
    if _UNCLEAR.search(text):
        return "invalid_characters", 'A redirect URI is visible ASCII without \\ < > " ^ ` { | } and *.'
    if "#" in text:
        return "fragment", "A redirect URI must not have a fragment (RFC 6749 3.1.2)."
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return "invalid_uri", "This is not a URI."
    scheme = text.partition(":")[0]
    if scheme in ("http", "https"):
        if wrong := _host_fault(parts.netloc, port, scheme):
            return wrong
    elif not _OF_AN_APP.fullmatch(scheme):
        return (
            "invalid_scheme",
            "A redirect URI starts with https://, http:// on this machine, or an app's own scheme such as "
            "com.example.app:/callback.",
        )
    segments = unquote(parts.path).replace("\\", "/").split("/")
    if "." in segments or ".." in segments:
        return "dot_segments", "The path must not contain . or .. segments."
    own = {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} & RESERVED_PARAMETERS
    if own:
        return "reserved_parameter", f"The parameter {sorted(own)[0]} is reserved: the platform adds it."
    return None


def _host_fault(netloc: str, port: int | None, scheme: str) -> tuple[str, str] | None:
    if not netloc:
        return "invalid_uri", "https:// must be followed by a host."
    if "@" in netloc:
        return "credentials", "A redirect URI must not have a user name or password."
    host = netloc
    if port is not None or netloc.endswith(":"):
        host, _, digits = netloc.rpartition(":")
        if digits != str(port) or port == 0:
            return "invalid_port", "The port is invalid."
    if not _HOST.fullmatch(host):
        return "invalid_host", "The host must be a lower-case name or an IP address."
    if scheme == "http" and host not in _LOOPBACK:
        return "not_https", "http:// is allowed only for localhost, 127.0.0.1 and [::1]."
    return None


def with_parameters(uri: str, parameters: dict[str, str | None]) -> str:
    """`uri` with the parameters that are not None appended. Pure."""
    query = urlencode({name: value for name, value in parameters.items() if value is not None})
    if "?" not in uri:
        return f"{uri}?{query}"
    return uri + query if uri.endswith(("?", "&")) else f"{uri}&{query}"


def of(environment_id: str | None) -> list[str]:
    """The sorted list of an environment, or of the platform (None). One query."""
    return list(_of(environment_id).order_by("uri").values_list("uri", flat=True))


def is_allowed(environment_id: str | None, uri: str) -> bool:
    return len(uri) <= MAX_LENGTH and "\0" not in uri and _of(environment_id).filter(uri=uri).exists()


def _of(environment_id: str | None) -> "QuerySet[RedirectUri]":
    return RedirectUri.objects.filter(environment_id=environment_id)


def problems(uris: Sequence[str]) -> list[FieldError]:
    faults = ((f"redirect_uris.{index}", fault(uri)) for index, uri in enumerate(uris))
    return [FieldError(field, *found) for field, found in faults if found]


@transaction.atomic
def replace(environment_id: str | None, uris: Sequence[str], *, actor: Caller | Actor) -> list[str]:
    """Replace and return the list, sorted. Raises ValidationFailed naming `redirect_uris.<index>`."""
    hold(environment_id)
    wrong = problems(uris)
    wanted = set(uris)
    if len(wanted) > MAX_URIS:
        wrong.append(FieldError("redirect_uris", "too_many", f"At most {MAX_URIS} redirect URIs."))
    if wrong:
        raise ValidationFailed(fields=wrong)
    known = set(of(environment_id))
    if wanted != known:
        _of(environment_id).exclude(uri__in=wanted).delete()
        RedirectUri.objects.bulk_create(
            [RedirectUri(environment_id=environment_id, uri=uri) for uri in sorted(wanted - known)]
        )
        audit.record(
            "redirect_uris.changed",
            environment_id,
            actor=actor,
            environment_id=environment_id,
            added=sorted(wanted - known),
            removed=sorted(known - wanted),
        )
    return sorted(wanted)


@transaction.atomic
def add(environment_id: str | None, uri: str, *, actor: Caller | Actor) -> RedirectUri:
    hold(environment_id)
    replace(environment_id, [*of(environment_id), uri], actor=actor)
    return _of(environment_id).get(uri=uri)


@transaction.atomic
def remove(environment_id: str | None, uri: str, *, actor: Caller | Actor) -> list[str]:
    hold(environment_id)
    return replace(environment_id, [each for each in of(environment_id) if each != uri], actor=actor)


def hold(environment_id: str | None) -> None:
    """Serialize changes: a concurrent one would be lost."""
    environment_directory.lock_settings(environment_id, "redirect URIs")
