"""How many processors this process may use. A container that was given two of a host's 64 processors still sees 64: its
share is a quota of its control group, which neither `os.cpu_count` nor the affinity knows of."""

import math
import os
from pathlib import Path
from typing import Final

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUPS: Final = Path("/proc/self/cgroup")


def cores(groups: Path = _GROUPS, own_groups: Path = _OWN_GROUPS) -> int:
    """At least 1; a part of a processor counts as one. `groups` is where control groups are mounted, `own_groups` names
    those of this process (cgroups(7))."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:  # not Linux
        return own
    shares = [float(own)]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            shares += [_share(*_words(group / "cpu.max")) for group in _and_above(groups, path)]
        elif "cpu" in controllers.split(","):
            shares += [
                _share(*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us"))
                for group in _and_above(groups / "cpu", path)
            ]
    return max(1, math.ceil(min(shares)))


def _and_above(mount: Path, path: str) -> list[Path]:
    """The group and all that it is part of, which bound it as well. In a container the mount often is the group itself,
    and the path one of the host that does not exist here."""
    group = mount / path.lstrip("/")
    return [group, *(above for above in group.parents if above.is_relative_to(mount))]


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _share(quota: str = "max", period: str = "100000", *_: str) -> float:
    """Processors; infinite where there is no quota ("max" in version 2, "-1" in version 1)."""
    if quota.isdigit() and period.isdigit() and int(quota) and int(period):
        return int(quota) / int(period)
    return math.inf
