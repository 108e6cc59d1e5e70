"""Cursors: values come back as they were, and nothing opens that was not made for this very list."""

import datetime as dt
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from platform_site.http import cursors
from platform_site.http.errors import ValidationFailed

KIND, FACTS = "rows", ["tasks", ["-due_on", "id"], "0123456789abcdef"]

zones = st.sampled_from(
    [dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), dt.timezone(-dt.timedelta(hours=11)), None]
)
values = st.one_of(
    st.none(),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=50),
    st.integers(-(2**63), 2**63 - 1),
    st.datetimes(timezones=zones),
)
rows = st.lists(values, max_size=4)


def refused(kind: str, facts: Any, text: str) -> None:
    with pytest.raises(ValidationFailed) as told:
        cursors.decode(kind, facts, text)
    assert [(field.field, field.code) for field in told.value.fields] == [("cursor", "invalid_cursor")]


@given(rows)
def test_values_come_back_equal_and_of_the_same_type(row: list[Any]) -> None:
    text = cursors.encode(KIND, FACTS, row)
    back = cursors.decode(KIND, FACTS, text)
    assert back == row
    assert [type(value) for value in back] == [type(value) for value in row]
    assert [str(value) for value in back] == [str(value) for value in row], "to the last digit and zone"
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@given(rows)
def test_equal_values_make_equal_cursors(row: list[Any]) -> None:
    assert cursors.encode(KIND, FACTS, row) == cursors.encode(KIND, FACTS, list(row))


@given(st.text(alphabet="abcdefgh", min_size=8, max_size=40))
def test_the_text_does_not_tell_the_values(secret: str) -> None:
    from base64 import urlsafe_b64decode

    text = cursors.encode(KIND, FACTS, [secret])
    assert secret.encode() not in urlsafe_b64decode(text + "==")
    assert text[:20] != cursors.encode(KIND, FACTS, [secret + "x"])[:20], "no common beginning for a common prefix"


@given(rows, st.integers(min_value=0), st.sampled_from("ABCxyz019-_ =+/\n\0é"))
def test_one_changed_character_is_refused(row: list[Any], place: int, other: str) -> None:
    text = cursors.encode(KIND, FACTS, row)
    place %= len(text)
    changed = text[:place] + other + text[place + 1 :]
    if changed != text:
        refused(KIND, FACTS, changed)


@given(rows, st.integers(min_value=0))
def test_a_shortened_or_lengthened_cursor_is_refused(row: list[Any], place: int) -> None:
    text = cursors.encode(KIND, FACTS, row)
    refused(KIND, FACTS, text[: place % len(text)])
    for more in ("A", "=", "==", " ", text):
        refused(KIND, FACTS, text + more)


@given(rows)
def test_a_cursor_of_another_list_is_refused(row: list[Any]) -> None:
    text = cursors.encode(KIND, FACTS, row)
    refused("projects", FACTS, text)
    refused(KIND, [], text)
    refused(KIND, ["tasks", ["due_on", "id"], "0123456789abcdef"], text)
    refused(KIND, ["tasks", ["-due_on", "id"], "0123456789abcdee"], text)


@given(st.text(max_size=100))
def test_what_we_did_not_make_is_refused(text: str) -> None:
    refused(KIND, FACTS, text)


@pytest.mark.parametrize("text", ["", "null", "1", "a" * 21, "A" * 8193, "A" * 1_000_000, "AAAA" * 30, "\ud800"])
def test_junk_is_refused_quickly(text: str) -> None:
    refused(KIND, FACTS, text)


def test_an_old_secret_opens_for_as_long_as_it_is_a_fallback() -> None:
    with override_settings(SECRET_KEY="old"):
        text = cursors.encode(KIND, FACTS, ["a"])
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=["older", "old"]):
        assert cursors.decode(KIND, FACTS, text) == ["a"]
        assert cursors.encode(KIND, FACTS, ["a"]) != text
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=[]):
        refused(KIND, FACTS, text)


def test_a_cursor_of_an_earlier_release_opens() -> None:
    """Cursors stay valid during an update: the derivation of the key and the form are unchanged."""
    values = [dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC), 7, None, "a"]
    text = "4AKxx9a6SyQkMD7WfpPE4IlFNoYBzITftqvz7JCJZ50Bf3zBduYSvpmDPxXLZMxZKPYmnzBO-n4rkd1z0yw"
    with override_settings(SECRET_KEY="old"):
        assert cursors.decode(KIND, FACTS, text) == values
        assert cursors.encode(KIND, FACTS, values) == text


def test_values_that_are_too_long_are_an_error_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = ["x" * 6_124]
    text = cursors.encode(KIND, FACTS, longest)
    assert len(text) == cursors.MAX_CHARACTERS
    assert cursors.decode(KIND, FACTS, text) == longest
    with pytest.raises(cursors.CursorTooLong):
        cursors.encode(KIND, FACTS, ["x" * 6_125])
    with monkeypatch.context() as patched:
        patched.setattr(cursors, "MAX_CHARACTERS", 10_000)
        text = cursors.encode(KIND, FACTS, ["x" * 6_125])
    refused(KIND, FACTS, text)
    with pytest.raises(TypeError):
        cursors.encode(KIND, FACTS, [object()])  # type: ignore[list-item]
