"""Ids: form, order, time."""

from datetime import UTC, datetime, timedelta

import pytest

from platform_site.identity import ids


def test_an_id_has_its_prefix_and_26_characters() -> None:
    made = ids.new("prj")
    assert ids.matches("prj", made)
    assert not ids.matches("env", made)
    assert len(made) == 4 + 26


def test_ids_of_one_process_sort_by_their_making() -> None:
    made = [ids.new("evt") for _ in range(5000)]
    assert made == sorted(made)
    assert len(set(made)) == 5000


def test_an_id_tells_when_it_was_made() -> None:
    assert abs(ids.created_at(ids.new("run")) - datetime.now(UTC)) < timedelta(seconds=5)


def test_an_earliest_id_bounds_those_made_later() -> None:
    now = datetime.now(UTC)
    assert ids.earliest("dlv", now) < ids.new("dlv") < ids.earliest("dlv", now + timedelta(seconds=5))
    assert abs(ids.created_at(ids.earliest("dlv", now)) - now) < timedelta(milliseconds=2)


def test_the_bits_are_those_of_a_uuid_of_version_7() -> None:
    """RFC 9562 section 5.7: version 7 in bits 48-51, variant 10 in bits 64-65."""
    number = 0
    for letter in ids.suffix():
        number = number << 5 | "0123456789abcdefghjkmnpqrstvwxyz".index(letter)
    assert number >> 76 & 0xF == 7
    assert number >> 62 & 0b11 == 0b10


@pytest.mark.parametrize(
    "value",
    ["", "prj_", "prj_" + "0" * 25, "prj_" + "8" + "0" * 25, "prj_" + "I" * 26, "prj_" + "0" * 26 + "\n", None, 7],
)
def test_what_is_not_an_id_is_told_apart(value: object) -> None:
    assert not ids.matches("prj", value)


def test_an_unknown_prefix_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown id prefix"):
        ids.new("nope")
