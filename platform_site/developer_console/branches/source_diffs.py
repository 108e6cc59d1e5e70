"""How a plan changes the sources of functions, as unified diffs."""

import difflib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MAX_LINES: Final = 2_000
MAX_SECONDS: Final = 1.0
"""Of all diffs of a plan: comparing takes quadratic time."""
_TAGS: Final = {"+": "ins", "-": "del", "@": "at"}


@dataclass(frozen=True, slots=True)
class SourceDiff:
    lines: list[tuple[str, str]]
    """What each line is (`ins`, `del`, `at` for a position, else empty) and its text. Empty: too long to compare."""

    @property
    def added(self) -> int:
        return sum(tag == "ins" for tag, _ in self.lines)

    @property
    def removed(self) -> int:
        return sum(tag == "del" for tag, _ in self.lines)


def by_path(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, SourceDiff]:
    """Of the functions whose source in `wanted` is not that in `now`, by the path of the change in a plan."""
    until = time.thread_time() + MAX_SECONDS
    found = {}
    for name, function in wanted.items():
        before, after = now.get(name, {}).get("source"), function.get("source")
        if after is not None and after != before:
            path = f"functions.{name}" if before is None else f"functions.{name}.source"
            is_late = time.thread_time() > until
            found[path] = SourceDiff([] if is_late else _lines(before, after))
    return found


def _lines(before: str | None, after: str) -> list[tuple[str, str]]:
    olds, news = (before or "").split("\n"), after.split("\n")
    if olds[-1] == news[-1] == "":  # both end with a line break
        del olds[-1], news[-1]
    if len(olds) > MAX_LINES or len(news) > MAX_LINES:
        return []
    diff = [*difflib.unified_diff(olds, news, lineterm="")][2:]  # without file names
    return [(_TAGS.get(line[0], ""), line) for line in diff]
