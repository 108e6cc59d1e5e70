"""A small file system in memory, which a test fills up."""

import errno
import os
import subprocess
from pathlib import Path

import pytest


class SmallDisk:
    """`size` bytes at the directory `at`, which is created, owned as `owner` is. Skips the test where mounting is not
    permitted."""

    def __init__(self, at: Path, size: int, owner: os.stat_result) -> None:
        at.mkdir()
        options = f"size={size},uid={owner.st_uid},gid={owner.st_gid},mode=700"
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)], capture_output=True)
        if mounted.returncode != 0:
            pytest.skip("mounting a file system is not permitted on this machine")
        self.at = at

    def fill(self) -> None:
        """Until nothing more fits: others write there meanwhile."""
        with open(self.at / "other", "wb", buffering=0) as other:
            try:
                while True:
                    other.write(bytes(1 << 16))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        (self.at / "other").unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.at)], check=True)
