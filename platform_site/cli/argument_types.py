"""Numeric arguments. Without Django: `manage.py up` starts before it."""

from argparse import ArgumentTypeError
from collections.abc import Callable


def whole_number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
        if not digits or not least <= int(text) <= most:
            raise ArgumentTypeError(f"must be a number from {least} to {most}")
        return int(text)

    return read
