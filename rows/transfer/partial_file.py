import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def partial_file(path: Path) -> Generator[IO[bytes]]:
    """A new, uniquely named file in the directory of `path`, which gets that name when the block succeeds. Mode 0600.
    Raises OSError."""
    with tempfile.NamedTemporaryFile(prefix=f"{path.name}.", suffix=".part", dir=path.parent, delete=False) as file:
        try:
            yield file
            file.close()
            Path(file.name).replace(path)
        finally:
            Path(file.name).unlink(missing_ok=True)
