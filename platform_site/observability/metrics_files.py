"""The metrics file of a process on a disk that may be full: writing to a sparse mapped file would raise SIGBUS. Blocks
are allocated first; if that fails, the process counts in memory only."""

import mmap
import os
import sys
from contextlib import suppress

from prometheus_client import mmap_dict, values


class MetricsFile(mmap_dict.MmapedDict):
    def __init__(self, filename: str, read_mode: bool = False) -> None:
        super().__init__(filename if read_mode else _with_room(filename), read_mode)  # type: ignore[no-untyped-call]

    def _init_value(self, key: str) -> None:
        wanted = self._capacity
        while self._used + len(key.encode()) + 32 > wanted:  # with its length, padding and two numbers
            wanted *= 2
        if wanted > self._capacity:
            try:
                os.posix_fallocate(self._f.fileno(), 0, wanted)
            except OSError:
                memory = open(os.memfd_create("metrics"), "r+b", buffering=0)
                memory.write(self._m[: self._capacity])
                self._f.close()
                self._f, self._m = memory, mmap.mmap(memory.fileno(), self._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]


def _with_room(filename: str) -> str:
    try:
        with open(filename, "ab") as file:
            if os.fstat(file.fileno()).st_size == 0:
                os.posix_fallocate(file.fileno(), 0, mmap_dict._INITIAL_MMAP_SIZE)
    except OSError:
        with suppress(OSError):
            os.unlink(filename)  # scrapes fail on an empty file
        return f"/proc/self/fd/{os.memfd_create('metrics')}"
    return filename


def use() -> None:
    if sys.platform == "linux":
        values.MmapedDict = MetricsFile  # type: ignore[attr-defined]  # which it does not export
