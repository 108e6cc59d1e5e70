"""What a management command prints."""

from io import StringIO
from typing import Any

from django.core.management import call_command


def run(*arguments: str, **options: Any) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out, **options)
    return out.getvalue()
