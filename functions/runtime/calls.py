from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from functions.runtime.errors import Reason


class Host(Protocol):
    """What a call may access outside of its process, with the permissions of its caller."""

    def answer(self, operation: str, arguments: bytes, *, seconds: float) -> bytes | Callable[[], bytes]:
        """The reply to one request of the code (`rows.list`, …, `fetch`), both as JSON text; the call has `seconds`
        left. For a network request the result is a function that obtains the reply, to be called in its own thread.
        `arguments` is untrusted. Both raise HostError for a refusal."""

    def interrupt(self) -> None:
        """The call is over: stop the requests that other threads still answer for it. May be called repeatedly."""


class HostError(Exception):
    """A refused request, which the code sees as an exception with these fields."""

    def __init__(
        self,
        message: str,
        *,
        code: str = "error",
        name: str = "Error",
        fields: list[Any] | None = None,
        operation: int | None = None,
    ) -> None:
        super().__init__(message)
        self.value = {"name": name, "message": message, "code": code, "fields": fields, "operation": operation}


@dataclass(frozen=True, slots=True)
class LogLine:
    at: float
    """Unix seconds."""
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """One invocation. `input` is JSON text; `timeout` in seconds, `max_output` in bytes of JSON."""

    input: str
    run_id: str
    caller: Mapping[str, Any]
    secrets: Mapping[str, str]
    timeout: float
    max_output: int


@dataclass(slots=True)
class Outcome:
    """How a call ended. `output` is JSON text where `reason` is None, else None; `duration` in seconds."""

    duration: float
    output: str | None = None
    reason: Reason | None = None
    error: dict[str, Any] | None = None
    logs: list[LogLine] = field(default_factory=list)
    sandbox_layers: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        return "succeeded" if self.reason is None else "failed"

    @property
    def duration_ms(self) -> int:
        return round(self.duration * 1000)
