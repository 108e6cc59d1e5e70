"""No space for PostgreSQL's write-ahead log (F23): writes are 503 until there is some again, and nothing that was
acknowledged is lost."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from platform_site.embedded.data_dir import region_database
from tests.faults.conftest import superuser
from tests.faults.write_load import SETTINGS, Storm, assert_nothing_is_lost
from tests.support.receiver import Receiver
from tests.support.service import Up, start_up, wait_for
from tests.support.small_disk import SmallDisk


class Disk(SmallDisk):
    """A separate file system with the write-ahead log of a data directory, and space for two more segments."""

    def __init__(self, log: Path, at: Path) -> None:
        owner = log.stat()
        used = sum(file.stat().st_size for file in log.rglob("*") if file.is_file())
        super().__init__(at, used + 40 * 1024 * 1024, owner)
        subprocess.run(["cp", "-a", f"{log}/.", str(at)], check=True)
        shutil.rmtree(log)
        log.symlink_to(at)
        os.chown(log, owner.st_uid, owner.st_gid, follow_symlinks=False)


def use_segments_up(up: Up) -> None:
    """Begin one segment after the other. Where there is no space for the next, PostgreSQL ends, and again as it recovers:
    raises psycopg.Error."""
    with superuser(up, region_database("us-east-1")) as connection:
        for _ in range(20):
            connection.execute("SELECT pg_logical_emit_message(true, 'test', 'x')")
            connection.commit()
            connection.execute("SELECT pg_switch_wal()")
            connection.commit()


@pytest.fixture
def up_on_a_small_disk(tmp_path: Path) -> Iterator[tuple[Up, Disk]]:
    if os.geteuid() != 0:
        pytest.skip("only root mounts file systems")
    environment = SETTINGS | {"RATE_LIMIT_FACTOR": "1000", "OUTBOUND_ALLOWED_NETWORKS": "127.0.0.0/8"}
    first = start_up(tmp_path / "data", environment=environment)
    assert first.stop() == 0, first.output
    [log] = (tmp_path / "data").rglob("pg_wal")
    disk = Disk(log, tmp_path / "disk")
    try:
        up = start_up(tmp_path / "data", environment=environment)
        try:
            yield up, disk
        finally:
            disk.free()
            assert up.stop() == 0, up.output
    finally:
        disk.unmount()


def test_full_disk_for_the_write_ahead_log_is_503_until_space_returns(
    up_on_a_small_disk: tuple[Up, Disk], receiver: Receiver
) -> None:
    up, disk = up_on_a_small_disk
    with Storm(up, receiver, 300, 6.0, "no-space") as storm:
        wait_for("some are written", lambda: storm.answers["201"] >= 20)
        disk.fill()
        with pytest.raises(psycopg.Error):
            use_segments_up(up)
        wait_for("writes are refused", lambda: storm.answers["503"] >= 20, 60)
        disk.free()
    assert set(storm.answers) <= {"201", "409", "503"}, storm.answers
    assert all(one.retry_after for one in storm.outcomes if one.status == 503)
    assert_nothing_is_lost(storm)
