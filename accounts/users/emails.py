"""Which texts are email addresses here, and in which spelling. Pure computation.

Addresses are stored, compared and counted in one spelling: lower case and NFC (`normalised`).

ASCII only: comparing without case is then the same in Python, in PostgreSQL and in the recipient's mail server, and no
look-alike (`ı` for `i`, the Kelvin sign for `k`) finds another person's account (Django CVE-2019-19844). An
internationalised domain is written as it travels, `xn--…`.

Of RFC 5321's forms, quoted local parts and addresses of machines (`a@[10.0.0.1]`) are refused, and so is what mail
programs decode (RFC 2047): an e-mail to `=?utf-8?q?b=6fss?=@example.com` goes to `boss@example.com`, so each of the
thousand spellings of one mailbox would have been an address, and a limit, of its own.
"""

import re
from typing import Final

from django.core.exceptions import ValidationError
from django.core.validators import validate_email

from platform_site.http.errors import ValidationFailed
from platform_site.identity.email_addresses import normalised

__all__ = ["LONGEST", "check", "normalised"]

LONGEST = 254
_UNUSUAL: Final = re.compile(r'["\\\[\]]|=\?')


def check(text: str) -> str:
    """The address as it is stored. Raises ValidationFailed on the field `email` for what is none."""
    if len(text) > LONGEST:
        raise ValidationFailed.of("email", "too_long", f"An e-mail address has at most {LONGEST} characters.")
    try:
        if not text.isascii() or _UNUSUAL.search(text):
            raise ValidationError("not ASCII, or of a form that is not taken")
        validate_email(text)
    except ValidationError:
        raise ValidationFailed.of("email", "invalid_email", "This is not an e-mail address (ASCII only).") from None
    return normalised(text)
