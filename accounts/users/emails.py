"""Valid emails and their normal form, lower case and NFC. ASCII only, so that comparison is the same everywhere and no
look-alike matches (Django CVE-2019-19844). Quoted local parts, IP domains and RFC 2047 words
(`=?utf-8?q?b=6fss?=@example.com`) are refused: one mailbox would have many spellings. Pure."""

import re
from typing import Final

from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from platform_site.http.errors import ValidationFailed
from platform_site.identity.email_addresses import normalize

__all__ = ["MAX_LENGTH", "check", "normalize"]

MAX_LENGTH = 254
_UNUSUAL: Final = re.compile(r'["\\\[\]]|=\?')


def check(text: str) -> str:
    if len(text) > MAX_LENGTH:
        raise ValidationFailed.of("email", "too_long", f"An email has at most {MAX_LENGTH} characters.")
    try:
        if not text.isascii() or _UNUSUAL.search(text):
            raise ValidationError("not ASCII, or of a form that is not taken")
        validate_email(text)
    except ValidationError:
        raise ValidationFailed.of("email", "invalid_email", "This is not a valid email (ASCII only).") from None
    return normalize(text)
