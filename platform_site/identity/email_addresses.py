import unicodedata


def normalize(text: str) -> str:
    """`text` need not be valid."""
    return unicodedata.normalize("NFC", text.strip()).lower()
