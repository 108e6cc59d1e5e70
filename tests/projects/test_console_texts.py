"""Texts of tenants in the console's pages: readable where they can be, bounded however they were made."""

import json
import time

from projects.console import texts
from projects.console.texts import difference, readable
from tests.support.timing import within


def test_json_is_indented_and_keeps_its_numbers() -> None:
    assert readable('{"a":[1,18446744073709551617],"ü":"x"}') == (
        '{\n  "a": [\n    1,\n    18446744073709551617\n  ],\n  "ü": "x"\n}',
        False,
    )
    assert readable("") == ("", False)
    assert readable("no {json") == ("no {json", False)


def test_what_is_deep_or_long_is_shown_as_far_as_there_is_room() -> None:
    for depth in (300, 1_000, 100_000):
        shown, _ = readable("[" * depth + "]" * depth)
        assert shown.startswith("[")
    wide = "[" * 60 + ",".join(["1"] * 500_000) + "]" * 60
    began = time.process_time()
    shown, is_cut = readable(wide)
    assert time.process_time() - began < within(1)
    assert (len(shown), is_cut) == (texts.MAX_SHOWN, True)
    whole = json.dumps("x" * (texts.MAX_SHOWN - 2))
    assert readable(whole) == (whole, False)
    assert readable(json.dumps("x" * texts.MAX_SHOWN))[1]


def test_lines_that_differ_are_told_by_kind() -> None:
    kinds = [kind for kind, _ in difference("a\n-- a comment\nb", "a\nb\n++c", "old", "new")]
    assert kinds == ["place", "place", "place", "same", "removed", "same", "added"]
    assert difference("a", "a", "old", "new") == []


def test_texts_made_to_be_slow_to_compare_are_not_compared() -> None:
    def source(step: int, lines: int) -> str:
        return "\n".join(str(number * step % 200) for number in range(lines))

    assert "Not compared: 170,000 lines and 1 line" in difference(source(1, 170_000), "x", "old", "new")[0][1]
    began = time.process_time()
    found = difference(source(1, texts.MAX_COMPARED), source(7, texts.MAX_COMPARED), "old", "new")
    assert time.process_time() - began < within(2)
    assert len(found) > 1_000
