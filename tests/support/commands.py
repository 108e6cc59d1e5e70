"""Management commands, run in this process."""

import io
import sys

import pytest
from django.core.management import call_command


def run(*arguments: str, stdin: str | None = None, monkeypatch: pytest.MonkeyPatch | None = None) -> tuple[str, str]:
    """What a command wrote to standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    if stdin is not None and monkeypatch is not None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    call_command(*arguments, stdout=out, stderr=err, no_color=True)
    return out.getvalue(), err.getvalue()
