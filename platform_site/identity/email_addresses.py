"""The normal form in which emails are stored, compared and counted. Pure computation."""

import unicodedata


def normalize(text: str) -> str:
    """`text` without surrounding white space, in Unicode's NFC and in lower case. `text` need not be a valid email."""
    return unicodedata.normalize("NFC", text.strip()).lower()
