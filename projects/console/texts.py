"""Texts of tenants as the console shows them: however they are made, a page costs what it is allowed to. Pure
computation, used by `admin.py` of `rows`, `webhooks` and `functions`.
"""

import difflib
import json
from collections.abc import Sequence
from typing import Final

from platform_site.http import exact_json

MAX_SHOWN: Final = 64_000
"""Characters of a text; more is cut in the page, not in the record."""
MAX_COMPARED: Final = 5_000
"""Lines of a text that is compared. The comparison is quadratic in those that occur often: two sources of 70 KB, made
for it, take 18 seconds, and of half a megabyte hours."""

_ENCODER: Final = json.JSONEncoder(indent=2, ensure_ascii=False)


def readable(text: str) -> tuple[str, bool]:
    """JSON with a member a line, and whether it was cut. What cannot be read is shown as it is.

    It is written as far as it is shown: a megabyte of small things in the depth of sixty arrays would be indented to
    sixty.
    """
    pieces, room = [], MAX_SHOWN + 1
    try:
        for piece in _ENCODER.iterencode(exact_json.loads(text)):
            pieces.append(piece)
            room -= len(piece)
            if room <= 0:
                break
    except (ValueError, RecursionError):  # no JSON, or deeper than we read: a function's output may be
        pieces = [text]
    shown = "".join(pieces)
    return shown[:MAX_SHOWN], len(shown) > MAX_SHOWN


def difference(before: str, after: str, name_before: str, name_after: str) -> list[tuple[str, str]]:
    """The lines that differ, each with its kind: added, removed, place or same. Of long texts one line that says so."""
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > MAX_COMPARED:
        return [("place", f"Not compared: {_lines(old)} and {_lines(new)}; {MAX_COMPARED:,} are the most.")]
    lines = difflib.unified_diff(old, new, name_before, name_after, lineterm="")
    kinds = {"+": "added", "-": "removed", "@": "place"}
    # The two names come first. A line that was removed may begin with two hyphens, too.
    return [("place" if number < 2 else kinds.get(line[:1], "same"), line) for number, line in enumerate(lines)]


def _lines(of: Sequence[str]) -> str:
    return f"{len(of):,} line" if len(of) == 1 else f"{len(of):,} lines"
