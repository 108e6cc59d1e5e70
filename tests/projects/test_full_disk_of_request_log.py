"""The disk that holds the request log is full: only its entries are lost, and requests are answered."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout
from platform_site.request_log import partitions, recording, writer
from projects.models import Environment
from tests.projects.conftest import key_for
from tests.support.client import Api
from tests.support.request_log import Log
from tests.support.small_disk import SmallDisk

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

REGION = "us-east-1"
MEGABYTE = 1024 * 1024


class Disk(SmallDisk):
    """A small file system with the partitions of the request log."""

    def __init__(self, at: Path) -> None:
        layout = Layout(Path(os.environ["DATA_DIR"]))
        owner = Path(layout.postgres).stat()
        super().__init__(at, 4 * MEGABYTE, owner)
        for folder in at.parents:
            if folder.stat().st_uid == os.getuid() and folder != Path("/"):
                folder.chmod(folder.stat().st_mode | 0o011)

    def use(self) -> None:
        self._run(f"CREATE TABLESPACE request_log LOCATION '{self.at}'")
        self._run("GRANT CREATE ON TABLESPACE request_log TO PUBLIC")
        with connections[REGION].cursor() as cursor:
            cursor.execute("TRUNCATE request_log_entry")  # the entries of other tests need more space than there is
        self._move("request_log")

    def _run(self, statement: str) -> None:
        with embedded_postgres.connect(Layout(Path(os.environ["DATA_DIR"]))) as superuser:
            superuser.execute(statement)

    @staticmethod
    def _move(tablespace: str) -> None:
        partitions.create(REGION)
        with connections[REGION].cursor() as cursor:
            cursor.execute(
                "SELECT format('%I', c.relname), format('%I', i.relname) FROM pg_partition_tree('request_log_entry') t"
                " JOIN pg_class c ON c.oid = t.relid LEFT JOIN pg_index x ON x.indrelid = c.oid"
                " LEFT JOIN pg_class i ON i.oid = x.indexrelid WHERE t.isleaf"
            )
            found = cursor.fetchall()
            for table in {table for table, _ in found}:
                cursor.execute(f"ALTER TABLE {table} SET TABLESPACE {tablespace}")
            for index in {index for _, index in found if index}:
                cursor.execute(f"ALTER INDEX {index} SET TABLESPACE {tablespace}")

    def remove(self) -> None:
        self._move("pg_default")
        self._run("DROP TABLESPACE IF EXISTS request_log")
        self.unmount()


@pytest.fixture
def disk(tmp_path: Path, production: Environment) -> Iterator[Disk]:
    found = Disk(tmp_path / "disk")
    try:
        found.use()
        yield found
    finally:
        found.free()
        found.remove()


@pytest.mark.exhaustive
def test_only_entries_are_lost_and_requests_are_answered(
    api: Api, production: Environment, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    log = Log()
    monkeypatch.setattr(recording, "MAX_WAITING", 300)
    monkeypatch.setattr(writer, "BATCH", 100)
    key = key_for(
        production.pk, "schema:read", "schema:write", "rows:read", "rows:write", "rows:bypass_rules", "logs:read"
    )
    document = {"tables": {"tasks": {"columns": {"title": {"type": "text"}}}}}
    assert api.request("PUT", "/v1/schema", token=key, json={"document": document}).status == 200
    before = len([each for each in log.written() if each.environment_id])
    disk.fill()
    for number in range(600):
        recording.queues[REGION].tallies.clear()  # as if seconds passed
        wanted = 201 if number % 10 == 0 else 200
        answer = (
            api.post("/v1/rows/tasks", token=key, json={"title": f"t{number}"})
            if wanted == 201
            else api.get("/v1/rows/tasks?limit=1", token=key)
        )
        assert answer.status == wanted, answer.json
        if number % 50 == 0:
            log.writers[REGION].write()
    assert "waits for its database" in caplog.text
    assert len(recording.queues[REGION].waiting) <= 300
    disk.free()
    entries = [each for each in log.written() if each.environment_id]
    assert len(entries) > before, "what waited arrives"
    assert len(entries) < before + 600, "what did not fit is lost"
    assert api.get("/v1/rows/tasks?limit=1&count=exact", token=key).json["count"] == 60
    recording.queues.clear()
