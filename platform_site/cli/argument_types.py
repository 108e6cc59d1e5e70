"""Numbers on a command line. Without Django: `manage.py up` reads its own before there is any."""

from argparse import ArgumentTypeError
from collections.abc import Callable


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """For argparse: what reads a number from `least` (0 or more) to `most`, and refuses all else in words."""

    def read(text: str) -> int:
        digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
        if not digits or not least <= int(text) <= most:
            raise ArgumentTypeError(f"must be a number from {least} to {most}")
        return int(text)

    return read
