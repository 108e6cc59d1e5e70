"""Shared by the commands of `functions`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.core.management.base import CommandError

from platform_site.http.errors import ApiError

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    return text


def escaped(text: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


@contextmanager
def sentences() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        details = "".join(f"\n  {field.field}: {escaped(field.message)}" for field in error.fields)
        raise CommandError(f"{error.text}{details}") from None
