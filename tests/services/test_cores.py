"""How many web processes there are by default, and that the embedded PostgreSQL has connections for all that are asked
for."""

import os
from pathlib import Path

import pytest

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.cores import cores
from platform_site.embedded.data_dir import Layout
from tests.support.service import start_up

HERE = len(os.sched_getaffinity(0))


def _groups(directory: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Control groups as the kernel shows them: where they are mounted, and which are this process's."""
    for name, content in files.items():
        file = directory / "mount" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content + "\n")
    named = directory / "own"
    named.write_text(own)
    return directory / "mount", named


@pytest.mark.parametrize(
    ("own", "files", "found"),
    [
        ("0::/\n", {"cpu.max": "max 100000"}, HERE),
        ("0::/\n", {"cpu.max": "100000 100000"}, 1),
        ("0::/\n", {"cpu.max": "1000 100000"}, 1),
        ("0::/\n", {"cpu.max": "110000 100000"}, min(HERE, 2)),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 50000"}, 1),
        ("0::/of/the/host\n", {"cpu.max": "90000 100000"}, 1),
        ("3:cpuset:/\n1:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "50000", "cpu/x/cpu.cfs_period_us": "100000"}, 1),
        ("1:cpu:/of/the/host\n", {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, HERE),
        ("1:name=systemd:/\n", {}, HERE),
        ("0::/\n", {"cpu.max": ""}, HERE),
        ("0::/\n", {"cpu.max": "0 0"}, HERE),
    ],
)
def test_a_container_counts_the_processors_that_it_was_given(
    own: str, files: dict[str, str], found: int, tmp_path: Path
) -> None:
    assert cores(*_groups(tmp_path, own, files)) == found


def test_where_there_are_no_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert cores(tmp_path, tmp_path / "nothing") == HERE


@pytest.mark.served
def test_there_are_connections_for_as_many_web_processes_as_were_asked_for(tmp_path: Path) -> None:
    """Each has up to 16 threads, and a thread a connection to each database that it asked."""
    up = start_up(tmp_path / "data", "--workers", "9", "--no-demo")
    try:
        layout = Layout(up.data_dir)
        with embedded_postgres.connect(layout) as connection:
            [most] = connection.execute("SHOW max_connections").fetchone() or [None]
        assert int(str(most)) >= 9 * 16 * 4 + 200
    finally:
        assert up.stop() == 0, up.output
