"""Errors that end a command, and exit codes (docs/reference/platform-command.md)."""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    FUNCTION_FAILED = 1
    USAGE = 2
    REFUSED = 3
    CREDENTIALS = 4
    NOT_FOUND = 5
    UNREACHABLE = 6
    CONFLICT = 7
    INCOMPATIBLE = 8
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141


@dataclass(eq=False)
class Failure(Exception):
    """`message` says what is wrong, `hint` what to do."""

    exit_code: Exit
    code: str
    message: str
    hint: str = ""
    fields: list[dict[str, Any]] = field(default_factory=list)
    request_id: str = ""
    run_id: str = ""

    def as_json(self) -> dict[str, Any]:
        error = {"code": self.code, "message": self.message, "hint": self.hint, "request_id": self.request_id}
        error = {name: value for name, value in error.items() if value}
        return {"error": {**error, "fields": self.fields} if self.fields else error}
