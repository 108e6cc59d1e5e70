"""The one spelling under which email addresses are stored, compared and counted. Pure computation."""

import unicodedata


def normalised(text: str) -> str:
    """`text` without surrounding white space, in Unicode's NFC and in lower case. `text` need not be an address."""
    return unicodedata.normalize("NFC", text.strip()).lower()
