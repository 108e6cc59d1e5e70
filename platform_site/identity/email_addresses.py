import unicodedata


def normalize(text: str) -> str:
    """Stripped, in NFC and lower case. `text` need not be valid."""
    return unicodedata.normalize("NFC", text.strip()).lower()
