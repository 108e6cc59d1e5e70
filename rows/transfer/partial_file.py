import tempfile
from pathlib import Path


def open_partial_file(path: Path) -> tuple[int, Path]:
    """A new, uniquely named file in the directory of `path`, open for writing, and its path. Raises OSError."""
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
    return descriptor, Path(name)
