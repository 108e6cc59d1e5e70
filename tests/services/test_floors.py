"""What is too old to run on is named at the start."""

import pytest

from platform_site.services import floors


@pytest.mark.parametrize(
    ("text", "below"),
    [
        ("6.2.14", True),
        ("6.2.20", False),
        ("7.0.15", True),
        ("7.2.10", True),
        ("7.4.6", False),
        ("8.2.1", True),
        ("8.2.2", False),
        ("8.4.0", False),
        ("5.0.0", True),
    ],
)
def test_a_release_line_has_its_own_floor(text: str, below: bool) -> None:
    assert floors.is_below(floors.parsed(text), floors.REDIS) is below


def test_postgres_is_held_to_the_floor_of_its_major_version() -> None:
    assert floors.is_below((15, 13), floors.POSTGRES)
    assert not floors.is_below((15, 14), floors.POSTGRES)
    assert floors.is_below((14, 22), floors.POSTGRES)
    assert not floors.is_below((19, 1), floors.POSTGRES)


@pytest.mark.django_db(databases="__all__")
def test_what_we_embed_has_no_known_holes() -> None:
    assert floors.problems() == []


@pytest.mark.django_db(databases="__all__")
def test_an_old_line_is_found_on_the_real_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "POSTGRES", {(99,): (99, 1)})
    monkeypatch.setattr(floors, "VALKEY", {(99,): (99, 1)})
    monkeypatch.setattr(floors, "DENO", (99, 0))
    found = " ".join(floors.problems())
    for name in ("default", "us-east-1", "PostgreSQL", "Valkey", "Deno"):
        assert name in found
