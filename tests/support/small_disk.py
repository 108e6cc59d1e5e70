"""A small file system in memory, which a test fills up."""

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
        with open(self.at / "other", "wb") as other:
            free = os.statvfs(self.at)
            other.write(bytes(free.f_bavail * free.f_frsize))

    def free(self) -> None:
        (self.at / "other").unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.at)], check=True)
