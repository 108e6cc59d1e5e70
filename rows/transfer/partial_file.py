"""Files of rows in the making: beside the name that they get once they are whole, for their owner alone."""

import tempfile
from pathlib import Path


def beside(path: Path) -> tuple[int, Path]:
    """A new file in the directory of `path`, open for writing, and where it is. Raises OSError.

    No two have the same name: what a process that was killed leaves is in nobody's way, though in a container the next
    one has the same number.
    """
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
    return descriptor, Path(name)
