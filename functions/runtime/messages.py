import re
from collections.abc import Mapping
from typing import Any, Final

from functions.runtime import imports
from functions.runtime.errors import Reason

_IMPORTS_REFUSED: Final = re.compile(
    "npm specifiers were requested|Requires import access|not a dependency|cannot-be-a-base|Unsupported scheme"
)
_BLOCKED: Final = re.compile('Blocked by null entry for ""([^"]{1,100})""')
"""Deno's message if the import map refuses a Node module."""
_COMMON_MISTAKES: Final = (
    (
        re.compile(r"\b(require|module|exports|__dirname|__filename) is not defined"),
        "This is CommonJS, a function is an ES module: import for require, export default (input, ctx) => output.",
    ),
    (
        re.compile(r"\bDeno\.serve is not a function"),
        "A function must not start a server; it is called: export default async (input, ctx) => output.",
    ),
)
"""Code written for other platforms: how it fails here, and the advice."""
_LOCATION: Final = re.compile(r"\n +at [^\n]*function\.ts:\d+:\d+\)?")


def with_location(error: Mapping[str, Any]) -> str:
    message: str = error["message"]
    if "function.ts:" in message:
        return message
    name = "" if error["name"] == "Error" else f"{error['name']}: "
    location = _LOCATION.search(error["stack"] or "")
    return name + message + (location[0] if location else "")


def with_advice(message: str) -> str:
    if blocked := _BLOCKED.search(message):
        instead = imports.INSTEAD.get(blocked[1].removeprefix("node:"))
        advice = f": use {instead}" if instead else ", which has no files, processes and sockets"
        return message.replace(blocked[0], f'"{blocked[1]}" is not one of the supported Node modules{advice}', 1)
    if _IMPORTS_REFUSED.search(message):
        return f"A function is one module. Bundle what it imports (esbuild --bundle --format=esm). {message}"
    for mistake, advice in _COMMON_MISTAKES:
        if mistake.search(message):
            return f"{advice} {message}"
    return message


_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


def clean(value: object, max_length: int) -> str:
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value if isinstance(value, str) else str(value))[:max_length]


def error(name: str, message: str, stack: str | None = None) -> dict[str, Any]:
    return {"name": name, "message": message, "stack": stack}


def error_of(value: object) -> dict[str, Any]:
    """The error that the code reported. Its fields are untrusted."""
    fields = value if isinstance(value, dict) else {}
    stack = fields.get("stack")
    name, message = clean(fields.get("name", "Error"), 200), clean(fields.get("message", ""), 2000)
    return error(name, message, clean(stack, 4000) if isinstance(stack, str) else None)


BY_REASON: Final[dict[Reason, tuple[str, str]]] = {
    "timeout": ("FunctionTimeout", "the function ran longer than its timeout"),
    "memory": ("OutOfMemory", "the function used more memory than its limit"),
    "crashed": ("ProcessCrashed", "the process of the function ended before the function did"),
    "protocol": ("ProtocolViolation", "the function wrote to the platform's channel"),
    "cancelled": ("Cancelled", "the run was cancelled"),
}
"""Names and messages of errors."""
