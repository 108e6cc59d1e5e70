"""The built wheel: what it contains, and the command that it installs."""

import resource
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.service import ROOT
from tests.support.timing import within
from tests.support.wheels import repack

pytestmark = pytest.mark.exhaustive

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without a network."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    options = ("-q", "--no-deps", "--no-build-isolation", "-w", str(folder))
    _run(sys.executable, "-m", "pip", "wheel", *options, str(_copy(folder)))
    [found] = folder.glob("*.whl")
    names = zipfile.ZipFile(found).namelist()
    assert "platform_site/developer_cli/main.py" in names
    assert {name.split("/")[1] for name in names if name.startswith("platform_site/")} == {"developer_cli"}
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`platform` in a virtual environment with what the wheel requires, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    repack(PROJECT["dependencies"], folder)
    venv.create(folder / "venv", with_pip=False)
    python = str(folder / "venv/bin/python")
    offline = ("--no-index", "--find-links", str(folder))
    _run(sys.executable, "-m", "pip", "--python", python, "install", "-q", *offline, str(wheel))
    return folder / "venv" / "bin" / "platform"


def _copy(folder: Path) -> Path:
    """What a build reads. Building in the checkout would leave files there."""
    source = folder / "source"
    package = source / "platform_site" / "developer_cli"
    (package / "commands").mkdir(parents=True)
    for file in [
        *(ROOT / "platform_site" / "developer_cli").rglob("*.py"),
        ROOT / "pyproject.toml",
        ROOT / "README.md",
    ]:
        (source / file.relative_to(ROOT)).write_bytes(file.read_bytes())
    return source


def _run(*command: str, **environment: str) -> str:
    # Away from the checkout, whose package would be found first.
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, env=environment or None)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _seconds_of_children() -> float:
    """Of a processor, since other tests may keep them busy."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_the_installed_command_prints_its_help_quickly(installed: Path) -> None:
    taken = []
    for _ in range(5):
        before = _seconds_of_children()
        text = _run(str(installed), "--help")
        taken.append(_seconds_of_children() - before)
    assert "login" in text
    assert "types" in text
    assert min(taken) < within(0.3)
    assert _run(str(installed), "--version").strip() == "0.1.0"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(installed: Path, shell: str) -> None:
    script = _run(str(installed), PATH="/usr/bin:/bin", _PLATFORM_COMPLETE=f"source_{shell}")
    assert str(installed.name) in script
    words = (
        {"COMP_WORDS": "platform ke", "COMP_CWORD": "1"} if shell == "bash" else {"_TYPER_COMPLETE_ARGS": "platform ke"}
    )
    more = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"} if shell == "fish" else {}
    assert "keys" in _run(str(installed), PATH="/usr/bin:/bin", _PLATFORM_COMPLETE=f"complete_{shell}", **words, **more)


def test_pipx_installs_it(wheel: Path, tmp_path: Path) -> None:
    pytest.importorskip("pipx")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    repack([*PROJECT["dependencies"], "pip"], wheels)  # pipx has a pip of its own
    environment = {
        "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PIPX_HOME": str(tmp_path / "pipx"),
        "PIPX_BIN_DIR": str(tmp_path / "bin"), "PIPX_DEFAULT_PYTHON": sys.executable,
        "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels),
    }  # fmt: skip
    _run(sys.executable, "-m", "pipx", "install", str(wheel), **environment)
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["platform"]
    assert _run(str(tmp_path / "bin" / "platform"), "--version").strip() == PROJECT["version"]
    assert "login" in _run(str(tmp_path / "bin" / "platform"), "--help", COLUMNS="100")
