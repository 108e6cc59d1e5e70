import re
from typing import Final
from urllib.parse import urlsplit, urlunsplit

REFERENCE: Final = "$secret:"

_KNOWN: Final = re.compile(
    r"\b(?:sk|rk|whsec)_[A-Za-z0-9_+/=]{16,}"
    r"|\bsk-[A-Za-z0-9_-]{20,}"
    r"|\bgh[opsur]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}|\bglpat-[A-Za-z0-9_-]{16,}"
    r"|\bxox[abeprs]-[A-Za-z0-9-]{10,}"
    r"|\bAKIA[0-9A-Z]{16}\b|\bAIza[A-Za-z0-9_-]{30,}|\bSG\.[A-Za-z0-9_-]{16,}"
    r"|\beyJ[A-Za-z0-9_-]{10,200}\.eyJ[A-Za-z0-9_-]{10}"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----"
    r"|\b[a-z][a-z0-9+.-]{0,20}://[^\s/@:\"'`$]{1,100}:[^\s/@\"'`$]{3,200}@"
)
"""Widely used forms of keys, and passwords in URLs. Bounded repetitions: 512 KB take milliseconds."""
_TOKEN: Final = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[A-Za-z0-9_.~%:@=,;-]{16,}|[A-Za-z]{24,}", re.ASCII)
_SECRET_PATHS: Final = ("hooks.slack.com", "hooks.zapier.com", "discord.com", "discordapp.com")
"""Their webhook paths are credentials."""
_PLACEHOLDER: Final = re.compile(r"\{[a-z_]+\}", re.ASCII)


def first_line_with_secret(text: str) -> int | None:
    found = _KNOWN.search(text)
    return None if found is None else text.count("\n", 0, found.start()) + 1


def masked(url: str) -> str:
    """The URL with references for user info, query values and token paths. Idempotent."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
    except ValueError:
        return f"{REFERENCE}url"
    userinfo, at, location = parts.netloc.rpartition("@")
    if userinfo and not userinfo.startswith(REFERENCE):
        userinfo = f"{REFERENCE}userinfo"
    path = parts.path
    has_token = any(_TOKEN.fullmatch(segment) for segment in path.split("/")) or first_line_with_secret(path)
    if has_token or (host.endswith(_SECRET_PATHS) and path.strip("/")):
        path = f"/{REFERENCE}path"
    query = "&".join(map(_masked_parameter, parts.query.split("&"))) if parts.query else ""
    return urlunsplit((parts.scheme, userinfo + at + location, path, query, ""))


def _masked_parameter(text: str) -> str:
    name, equals, value = text.partition("=")
    if not equals:
        return text if text.startswith(REFERENCE) else f"{REFERENCE}query"
    if not value or value.startswith(REFERENCE) or _PLACEHOLDER.fullmatch(value):
        return text
    return f"{name}={REFERENCE}{name}"
