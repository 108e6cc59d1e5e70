"""Incomplete files of rows: written beside their final name, readable by their owner only."""

import tempfile
from pathlib import Path


def open_partial_file(path: Path) -> tuple[int, Path]:
    """A new file in the directory of `path`, open for writing, and its path. Raises OSError. Names are unique, so that
    the remains of a killed process do not conflict, even with the same process id in a container."""
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
    return descriptor, Path(name)
