"""What is too old to run on is named at the start."""

import pytest

from platform_site.embedded import minimum_versions


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
    assert minimum_versions.is_below(minimum_versions.parse(text), minimum_versions.REDIS) is below


def test_a_version_is_compared_with_the_minimum_of_its_line() -> None:
    assert minimum_versions.is_below((8, 0, 5), minimum_versions.VALKEY)
    assert not minimum_versions.is_below((8, 0, 6), minimum_versions.VALKEY)
    assert minimum_versions.is_below((17, 9), minimum_versions.POSTGRES)
    assert not minimum_versions.is_below((18, 0), minimum_versions.POSTGRES)
    assert not minimum_versions.is_below((19, 1), minimum_versions.POSTGRES)


@pytest.mark.django_db(databases="__all__")
def test_what_we_embed_has_no_known_holes() -> None:
    assert minimum_versions.problems() == []


@pytest.mark.django_db(databases="__all__")
def test_an_old_line_is_found_on_the_real_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minimum_versions, "POSTGRES", {(99,): (99, 1)})
    monkeypatch.setattr(minimum_versions, "VALKEY", {(99,): (99, 1)})
    monkeypatch.setattr(minimum_versions, "DENO", (99, 0))
    found = " ".join(minimum_versions.problems())
    for name in ("default", "us-east-1", "PostgreSQL", "Valkey", "Deno"):
        assert name in found
