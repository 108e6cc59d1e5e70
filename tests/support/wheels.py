"""A folder of wheels from which pip installs without a network."""

import zipfile
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_LEFT_OUT = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json"}


def repack(requirements: list[str], folder: Path) -> None:
    """Write the wheels of these installed packages, and of all that they need, into the folder."""
    done: set[str] = set()
    wanted = list(requirements)
    while wanted:
        requirement = Requirement(wanted.pop())
        name = canonicalize_name(requirement.name)
        if name not in done and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            done.add(name)
            _repack(name, folder)
            wanted += distribution(name).requires or []


def _repack(name: str, folder: Path) -> None:
    found = distribution(name)
    tags = [line.split(": ")[1] for line in (found.read_text("WHEEL") or "").splitlines() if line.startswith("Tag")]
    tag = next((each for each in tags if each.startswith("py3")), tags[0])
    with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{found.version}-{tag}.whl", "w") as wheel:
        names = [str(file) for file in found.files or ()]
        info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
        inside = [
            name
            for name in names
            if not name.startswith("..") and "__pycache__" not in name and Path(name).name not in _LEFT_OUT
        ]
        for name in inside:
            wheel.write(str(found.locate_file(name)), name)
        wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*inside, f"{info}/RECORD"]))
