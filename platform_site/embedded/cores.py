"""How many processors this process may use, by its control group, which `os.cpu_count` ignores."""

import math
import os
from pathlib import Path
from typing import Final

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")


def cores(groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """At least 1, rounded up. `groups`: mount point; `own_groups`: this process's groups (cgroups(7))."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:  # not Linux
        return own
    shares = [float(own)]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            shares += [_share(group, "cpu.max") for group in _and_above(groups, path)]
        elif "cpu" in controllers.split(","):
            shares += [
                _share(group, "cpu.cfs_quota_us", "cpu.cfs_period_us") for group in _and_above(groups / "cpu", path)
            ]
    return max(1, math.ceil(min(shares)))


def _and_above(mount: Path, path: str) -> list[Path]:
    """The ancestors' quotas apply, too. In a container the path may not exist here."""
    group = mount / path.lstrip("/")
    return [group, *(above for above in group.parents if above.is_relative_to(mount))]


def _share(group: Path, *files: str) -> float:
    """Quota divided by period, of these files; infinite without a quota ("max" in version 2, "-1" in version 1)."""
    try:
        words = [word for file in files for word in (group / file).read_text().split()]
    except OSError:
        return math.inf
    if len(words) == 2 and all(word.isdigit() and int(word) for word in words):
        return int(words[0]) / int(words[1])
    return math.inf
