"""Valid emails and their normal form. Pure computation. Emails are stored, compared and counted in lower case and NFC
(`normalize`). ASCII only: comparing without case is then the same in Python, in PostgreSQL and in the recipient's mail
server, and no look-alike (`ı` for `i`, the Kelvin sign for `k`) matches another person's account (Django
CVE-2019-19844). An internationalised domain is written as `xn--…`. Of the forms of RFC 5321, quoted local parts and IP
domains (`a@[10.0.0.1]`) are refused, and so is what mail programs decode (RFC 2047): mail to
`=?utf-8?q?b=6fss?=@example.com` goes to `boss@example.com`, so a mailbox would have many spellings, each with its own
limits."""

import re
from typing import Final

from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from platform_site.http.errors import ValidationFailed
from platform_site.identity.email_addresses import normalize

__all__ = ["LONGEST", "check", "normalize"]

LONGEST = 254
_UNUSUAL: Final = re.compile(r'["\\\[\]]|=\?')


def check(text: str) -> str:
    """The email in its normal form. Raises ValidationFailed on the field `email` if it is invalid."""
    if len(text) > LONGEST:
        raise ValidationFailed.of("email", "too_long", f"An email has at most {LONGEST} characters.")
    try:
        if not text.isascii() or _UNUSUAL.search(text):
            raise ValidationError("not ASCII, or of a form that is not taken")
        validate_email(text)
    except ValidationError:
        raise ValidationFailed.of("email", "invalid_email", "This is not a valid email (ASCII only).") from None
    return normalize(text)
