"""The lock files are what pyproject.toml asks for: every requirement pinned with hashes, once, to a version it
allows."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)(?P<rest>.*(?:\n    .*)*)", re.MULTILINE)


def pins(name: str) -> dict[str, set[str]]:
    """Versions by package (several where a marker chooses). Fails for a pin without a hash."""
    found: dict[str, set[str]] = {}
    for pin in _PIN.finditer((ROOT / name).read_text()):
        assert "--hash=sha256:" in pin["rest"], pin["name"]
        found.setdefault(canonicalize_name(pin["name"]), set()).add(pin["version"])
    return found


RUN = PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["server"]
DEVELOP = RUN + PROJECT["dependency-groups"]["dev"]


@pytest.mark.parametrize(("lock", "wanted"), [("requirements.lock", RUN), ("requirements-dev.lock", DEVELOP)])
def test_every_requirement_is_pinned_to_a_version_it_allows(lock: str, wanted: list[str]) -> None:
    pinned = pins(lock)
    for text in wanted:
        requirement = Requirement(text)
        versions = pinned.get(canonicalize_name(requirement.name))
        assert versions, f"{text} is missing from {lock}: compile it anew"
        for version in versions:
            assert requirement.specifier.contains(Version(version), prereleases=True), (text, version)


def test_both_locks_agree() -> None:
    run, develop = pins("requirements.lock"), pins("requirements-dev.lock")
    assert {name: develop.get(name) for name in run} == run


def test_what_runs_here_is_what_is_pinned() -> None:
    from importlib.metadata import version

    for name, versions in pins("requirements.lock").items():
        if name in {canonicalize_name(Requirement(text).name) for text in RUN}:
            assert version(name) in versions, name
