"""Types of arguments. Without Django: `manage.py up` starts before it."""

from argparse import ArgumentTypeError
from collections.abc import Callable


def whole_number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
        if not digits or not least <= int(text) <= most:
            raise ArgumentTypeError(f"must be a number from {least} to {most}")
        return int(text)

    return read


def pair(described: str) -> Callable[[str], tuple[str, str]]:
    def read(text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not equals:
            raise ArgumentTypeError(f"must be {described}")
        return name, value

    return read
