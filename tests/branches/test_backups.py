"""`manage.py backup` and `restore`: everything there and back, one moment, and no damaged file changes anything."""

import json
import os
import random
import stat
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections
from django.db.models import Value
from django.db.models.functions import Repeat

from accounts import audit
from accounts.models import AuditEntry, User
from accounts.users import service as accounts
from functions.models import Function, Secret, Version
from platform_site.identity import plans
from platform_site.postgres import transaction_settings
from platform_site.security import keyring
from projects import tasks
from projects.directory.environments import environment_ref
from projects.models import Environment
from rows.migrate import service as schema_service
from rows.migrate import versions as schema_versions
from rows.models import CurrentVersion, OutboxEvent, SchemaVersion
from rows.outbox import subscriptions
from rows.transfer import backup_content, restore
from rows.transfer.backup_file import Archive, DamagedArchive, Writer
from tests.branches.conftest import Branch, address, row, rows
from tests.projects.conftest import environment_of, make_project, schemas_in
from tests.rows.conftest import Tracker
from tests.support import catalog
from tests.support.concurrency import in_thread, wait_until
from tests.support.project_crashes import Run
from tests.support.tracker import DOCUMENT
from webhooks.cli_listener import Listener
from webhooks.delivery.signing import SECRET_PURPOSE
from webhooks.models import Webhook

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(transaction=True, databases="__all__")]
REGION = "us-east-1"
TABLES = ("lists", "tasks", "comments", "secrets")
AWKWARD = 'tab\tbackslash\\ \\N \\. newline\nquote" \x01 é 𝄞 \u2028'


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, "--no-progress", stdout=out)
    return out.getvalue()


@pytest.fixture
def run_and_kill(request: pytest.FixtureRequest) -> Run:
    """The fixture `run` of crashes; that name is taken here."""
    made: Run = request.getfixturevalue("run")
    return made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "backup.zip"


@pytest.fixture
def full(tracker: Tracker) -> Tracker:
    """The tracker with a second version, awkward values, a webhook and a function."""
    tables = {**DOCUMENT["tables"], "notes": {"columns": {"body": {"type": "text"}}}}
    tracker.apply({"tables": tables, "users": {"member": ["name"]}})
    alice = tracker.users["alice"]
    home = rows(tracker, "lists", tracker.environment_id)[0]["id"]
    row(
        tracker, "tasks", title=AWKWARD, notes="", list_id=home, owner_id=alice, weight=0.1, price="12345678.90",
        due_on="0001-01-01", seen_at="9999-12-31T23:59:59.999999Z", token="0f0f0f0f-0f0f-4f0f-8f0f-0f0f0f0f0f0f",
        meta={"a": [None, {"b": AWKWARD}]}, tags=["", "a,b", "{}", AWKWARD], priority=-(2**63), status="done",
    )  # fmt: skip
    body = {"url": "https://hooks.example.com/in", "events": ["tasks.*"], "filter": {"done": False}, "ordering": "row"}
    assert tracker.post("owner", "/webhooks", body).status == 201
    function = Function.objects.using(REGION).create(
        environment_id=tracker.environment_id, name="hello", active_version=1, last_version=2, timeout_ms=700,
        memory_mb=64, allowed_hosts=["api.example.com"], schedule="@hourly", next_run_at="2026-01-01T00:00:00Z",
        scheduled_kind="key", scheduled_id="key_x", events=["tasks.*"], events_kind="key", events_id="key_x",
    )  # fmt: skip
    for number in (1, 2):
        Version.objects.using(REGION).create(
            function=function, number=number, source=f"// {number} é", source_hash=str(number), author_kind="system"
        )
    sealed = keyring.seal(b"very secret value", purpose="functions.secret")
    Secret.objects.using(REGION).create(function=function, name="TOKEN", sealed_value=sealed)
    return tracker


def everything(tracker: Tracker, environment_id: str) -> dict[str, Any]:
    tables = {table: rows(tracker, table, environment_id) for table in (*TABLES, "notes")}
    owner = tracker.tokens["owner"]
    document = tracker.api.get("/v1/schema", token=owner, environment=environment_id).json["document"]
    return tables | {"document": document}


def test_there_and_back_into_a_branch(full: Tracker, file: Path) -> None:
    before = everything(full, full.environment_id)
    said = run("backup", full.environment_id, "--to", str(file))
    assert "version 2, 5 tables, 4 rows" in said
    assert "1 webhook, 1 function, 2 function versions;" in said
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # Whatever happens to the original afterwards.
    home = before["lists"][0]["id"]
    assert full.delete("owner", f"/rows/lists/{home}").status == 204
    said = run("restore", str(file), "--branch-of", full.project.pk, "--name", "yesterday")
    assert "creating" not in said
    branch = Environment.objects.get(name="yesterday")
    assert branch.pk in said
    assert (branch.status, branch.pool_id, branch.parent_id) == ("ready", full.environment_id, full.environment_id)
    assert everything(full, branch.pk) == before
    assert rows(full, "tasks", full.environment_id) == []
    owner = full.tokens["owner"]
    history = full.api.get("/v1/schema/versions", token=owner, environment=branch.pk).json["data"]
    assert history == full.get("owner", "/schema/versions").json["data"]
    (webhook,) = Webhook.objects.using(REGION).filter(environment_id=branch.pk)
    assert (webhook.url, webhook.enabled, webhook.disabled_reason) == (
        "https://hooks.example.com/in",
        False,
        "restored",
    )
    (original,) = Webhook.objects.using(REGION).filter(environment_id=full.environment_id)
    secrets = [keyring.unseal(bytes(each.sealed_secret), purpose=SECRET_PURPOSE) for each in (original, webhook)]
    assert secrets[0] != secrets[1]
    function = Function.objects.using(REGION).get(environment_id=branch.pk)
    assert (function.name, function.active_version, function.last_version) == ("hello", 1, 2)
    assert list(function.versions.order_by("number").values_list("source", flat=True)) == ["// 1 é", "// 2 é"]
    assert list(function.secrets.values_list("name", "sealed_value")) == [("TOKEN", None)]
    assert (function.schedule, function.next_run_at, function.schedule_stopped) == ("@hourly", None, "copied")
    assert (function.events, function.events_stopped, function.events_id) == (["tasks.*"], "copied", None)
    assert not OutboxEvent.objects.using(REGION).filter(environment_id=branch.pk).exists()
    assert AuditEntry.objects.get(action="environment.restored").detail["source"] == full.environment_id
    # It lives: references cascade, uniques hold, versions count on.
    assert full.api.delete(f"/v1/rows/lists/{home}", token=owner, environment=branch.pk).status == 204
    assert rows(full, "tasks", branch.pk) == []
    reverted = full.api.post(
        "/v1/schema/revert", token=owner, environment=branch.pk, json={"version": 1, "confirm": ["drop table notes"]}
    )
    assert reverted.json["version"] == 3


def test_a_function_with_more_source_than_one_line_may_have(full: Tracker, file: Path) -> None:
    """Deployed a hundred times and more: each version is a line of its own, so that the file can be read again."""
    body = {"source": _source(1)}
    owner, production = full.tokens["owner"], full.environment_id
    assert full.api.put("/v1/functions/large", token=owner, environment=production, json=body).status == 201
    original = Function.objects.using(REGION).get(environment_id=full.environment_id, name="large")
    for number in range(2, 141):
        Version.objects.using(REGION).create(
            function=original, number=number, source=_source(number), source_hash=str(number), author_kind="system"
        )
    assert "142 function versions;" in run("backup", full.environment_id, "--to", str(file))
    assert "is complete" in run("restore", str(file), "--check")
    run("restore", str(file), "--branch-of", full.project.pk, "--name", "b")
    branch = Environment.objects.get(name="b")
    copied = Function.objects.using(REGION).get(environment_id=branch.pk, name="large")
    assert copied.versions.count() == original.versions.count() == 140
    for number in range(1, 141):
        kept, came_back = original.versions.get(number=number), copied.versions.get(number=number)
        assert came_back.source == kept.source == _source(number)
        assert came_back.source_hash == kept.source_hash
    called = full.api.post("/v1/functions/large/invoke", token=owner, environment=branch.pk, json={"input": {}})
    assert called.json["output"] == 1


def _source(number: int) -> str:
    """A module of 512 KB, many of whose characters JSON writes as two."""
    code = f"export default () => {number};\n//"
    return code + '"\\\t' * ((512 * 1024 - len(code)) // 3)


def test_what_no_restore_would_take_is_in_no_backup(full: Tracker, file: Path) -> None:
    """Rows that were written without the API."""
    function = Function.objects.using(REGION).get(environment_id=full.environment_id)
    # As a parameter it has exceeded the statement timeout on a busy machine.
    source = Repeat(Value("é"), 33 * 2**20)
    giant = Version.objects.using(REGION).create(
        function=function, number=3, source=source, source_hash="3", author_kind="system"
    )
    with pytest.raises(CommandError, match=r'line 3 of function_versions.*64 MB.*"function":"hello","number":3'):
        run("backup", full.environment_id, "--to", str(file))
    giant.delete()
    (task, *_) = rows(full, "tasks", full.environment_id)
    catalog.run(full.environment_id, "UPDATE tasks SET due_on = 'infinity' WHERE id = %s", task["id"])
    with pytest.raises(CommandError, match=f"the row '{task['id']}' of tasks .* column due_on"):
        run("backup", full.environment_id, "--to", str(file))
    assert os.listdir(file.parent) == []
    catalog.run(full.environment_id, "UPDATE tasks SET due_on = NULL")
    run("backup", full.environment_id, "--to", str(file))
    run("restore", str(file), "--branch-of", full.project.pk, "--name", "b")


def test_there_and_back_into_the_same_environment(full: Tracker, file: Path) -> None:
    before = everything(full, full.environment_id)
    run("backup", full.environment_id, "--to", str(file))
    second = full.get("owner", "/schema/versions/2").json
    full.apply({"tables": {"other": {"columns": {"body": {"type": "text"}}}}})
    row(full, "other", body="x")
    with pytest.raises(CommandError, match="--replace"):
        run("restore", str(file), "--into", full.environment_id)
    assert len(rows(full, "other", full.environment_id)) == 1
    run("restore", str(file), "--into", f"{full.project.pk}/production", "--replace")
    assert everything(full, full.environment_id) == before
    assert full.get("owner", "/rows/other").status == 404
    # A version of its own: every process follows it, and can go back behind it.
    now = full.get("owner", "/schema").json
    assert (now["version"], now["document"]) == (4, second["document"])
    assert Webhook.objects.using(REGION).filter(environment_id=full.environment_id).count() == 1
    assert Function.objects.using(REGION).filter(environment_id=full.environment_id).count() == 1
    assert len([name for name in _schemas() if name.startswith("restore_")]) == 0
    row(full, "notes", body="goes on")


def test_into_an_empty_environment_of_another_region(full: Tracker, file: Path, make_tracker: Any) -> None:
    run("backup", full.environment_id, "--to", str(file))
    elsewhere = make_project(User.objects.get(email="owner@tracker.example"), "Elsewhere", region="eu-west-1")
    target = environment_of(elsewhere).pk
    run("restore", str(file), "--into", target)
    assert everything(full, target) == everything(full, full.environment_id)
    assert CurrentVersion.objects.using("eu-west-1").get(pk=target).version == 1
    assert Webhook.objects.using("eu-west-1").get().enabled is False
    assert Function.objects.using("eu-west-1").get().name == "hello"


def test_an_environment_without_a_schema(tracker: Tracker, file: Path) -> None:
    run("backup", f"{tracker.project.pk}/development", "--to", str(file))
    run("restore", str(file), "--branch-of", tracker.project.pk, "--name", "nothing")
    branch = Environment.objects.get(name="nothing")
    assert tracker.api.get("/v1/schema", token=tracker.tokens["owner"], environment=branch.pk).json["version"] == 0


def test_it_holds_no_secret(full: Tracker, file: Path) -> None:
    run("backup", full.environment_id, "--to", str(file))
    with zipfile.ZipFile(file) as archive:
        content = b"".join(archive.read(name) for name in archive.namelist())
    secret = keyring.unseal(bytes(Webhook.objects.using(REGION).get().sealed_secret), purpose=SECRET_PURPOSE)
    for hidden in (secret, b"very secret value", b"sealed"):
        assert hidden not in content
    assert b"TOKEN" in content


def test_users_who_were_deleted_since_do_not_come_back(full: Tracker, file: Path) -> None:
    full.apply(
        {
            "tables": {
                **DOCUMENT["tables"],
                "notes": {"columns": {"body": {"type": "text"}, "author": {"type": "user", "on_delete": "delete", "null": True}}},
            }
        }
    )  # fmt: skip
    for who in ("alice", "bob"):
        row(full, "notes", body=who, author_id=full.users[who])
    run("backup", full.environment_id, "--to", str(file))
    accounts.delete_user(User.objects.get(pk=full.users["bob"]), actor=audit.SYSTEM)
    run("restore", str(file), "--branch-of", full.project.pk, "--name", "b")
    run("restore", str(file), "--into", full.environment_id, "--replace")
    for environment_id in (full.environment_id, Environment.objects.get(name="b").pk):
        assert [each["body"] for each in rows(full, "notes", environment_id)] == ["alice"]


def test_a_row_that_must_stay_keeps_no_backup_from_being_restored(full: Tracker, file: Path) -> None:
    """What kept the user then was gone when the user went, and is there again in the backup."""
    author = {"type": "user", "on_delete": "delete", "null": True}
    reader = {"type": "user", "on_delete": "null", "null": True}
    tables = {
        **DOCUMENT["tables"],
        "notes": {"columns": {"body": {"type": "text"}, "author": author, "reader": reader}},
        "receipts": {"columns": {"note": {"type": "reference", "to": "notes"}}},
    }
    full.apply({"tables": tables})
    bob = full.users["bob"]
    kept = row(full, "notes", body="kept", author_id=bob)
    row(full, "notes", body="goes", author_id=bob)
    row(full, "notes", body="read", reader_id=bob)
    receipt = row(full, "receipts", note_id=kept)
    run("backup", full.environment_id, "--to", str(file))
    assert full.delete("owner", f"/rows/receipts/{receipt}").status == 204
    accounts.delete_user(User.objects.get(pk=bob), actor=audit.SYSTEM)
    run("restore", str(file), "--branch-of", full.project.pk, "--name", "b")
    run("restore", str(file), "--into", full.environment_id, "--replace")
    for environment_id in (full.environment_id, Environment.objects.get(name="b").pk):
        found = {each["body"]: (each["author_id"], each["reader_id"]) for each in rows(full, "notes", environment_id)}
        assert found == {"kept": (bob, None), "read": (None, None)}


def test_a_value_too_long_for_its_index_is_in_the_way_of_no_copy(full: Tracker, branch: Branch, file: Path) -> None:
    """A large table has such rows beside an index that is due and cannot be made."""
    tables = {**DOCUMENT["tables"], "notes": {"columns": {"body": {"type": "text"}}, "indexes": [["body"]]}}
    full.apply({"tables": tables})
    (index,) = catalog.run(
        full.environment_id, "SELECT indexname FROM pg_indexes WHERE indexname LIKE '\\_ix%%' AND tablename = 'notes'"
    )[0]
    chance = random.Random(7)
    long = "".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(3000))
    with connections[REGION].cursor() as cursor:
        cursor.execute(f'DROP INDEX "{full.environment_id}"."{index}"')
    catalog.run(full.environment_id, "INSERT INTO notes (id, body) VALUES ('n', %s)", long)
    mine = CurrentVersion.objects.using(REGION).filter(pk=full.environment_id)
    mine.update(indexes_due=True)
    assert branch("copy", data="full", **{"from": "production"}).status == 201
    run("backup", full.environment_id, "--to", str(file))
    run("restore", str(file), "--branch-of", full.project.pk, "--name", "b")
    mine.update(indexes_due=False)
    run("restore", str(file), "--into", full.environment_id, "--replace")
    for made in Environment.objects.exclude(name="development"):
        assert [each["body"] for each in rows(full, "notes", made.pk)] == [long]
        assert CurrentVersion.objects.using(REGION).get(pk=made.pk).indexes_due


def test_a_backup_is_one_moment_while_rows_are_written(tracker: Tracker, file: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        try:
            while not stop.is_set():
                body = [{"name": half, "owner_id": tracker.users["bob"]} for half in "ab"]
                assert tracker.post("owner", "/rows/lists", body).status == 201
        finally:
            connections.close_all()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            run("backup", tracker.environment_id, "--to", str(file), "--replace")
            with Archive(file) as archive:
                content = backup_content.verified(archive)
                (lists,) = [table for table in content.archive.manifest["tables"] if table["name"] == "lists"]
                assert lists["rows"] % 2 == 1
                assert b"".join(archive.read("rows/lists.copy")).count(b"\n") == lists["rows"]
    finally:
        stop.set()
        writer.join(10)


# ── What is no whole backup ─────────────────────────────────────────────────────────────────────────────────────────


def _schemas() -> list[str]:
    with connections[REGION].cursor() as cursor:
        cursor.execute("SELECT nspname FROM pg_namespace")
        return [name for (name,) in cursor.fetchall()]


def nothing_has_changed(tracker: Tracker) -> bool:
    return (
        Environment.objects.count() == len(schemas_in(REGION)) == 2
        and not [name for name in _schemas() if name.startswith("restore_")]
        and CurrentVersion.objects.using(REGION).get(pk=tracker.environment_id).version == 2
        and not AuditEntry.objects.filter(action="environment.restored", target_id=tracker.environment_id).exists()
        and SchemaVersion.objects.using(REGION).count() == 2
    )


def test_a_damaged_file_is_refused_before_anything_is_changed(full: Tracker, file: Path) -> None:
    run("backup", full.environment_id, "--to", str(file))
    whole = file.read_bytes()
    chance = random.Random(19)
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        for where in (("--branch-of", full.project.pk, "--name", "b"), ("--into", full.environment_id, "--replace")):
            with pytest.raises(CommandError, match="damaged"):
                run("restore", str(file), *where)
    assert nothing_has_changed(full)
    with Archive(_written(file, whole)) as archive:
        expected = {name: b"".join(archive.read(name)) for name in archive.members}
    refused = 0
    for _ in range(150):
        broken = bytearray(whole)
        broken[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        _written(file, bytes(broken))
        try:
            with Archive(file) as archive:
                backup_content.verified(archive)
                # What is let through is what was written: the flipped bit says nothing, as a time stamp does.
                assert {name: b"".join(archive.read(name)) for name in archive.members} == expected
        except DamagedArchive:
            refused += 1
    assert refused > 100
    assert nothing_has_changed(full)


def _written(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


def forged(file: Path, change: Callable[[dict[str, bytes], dict[str, Any]], None]) -> None:
    """The same backup with other members and another manifest, its checksums made to fit."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    change(members, manifest)
    facts = {key: value for key, value in manifest.items() if key not in ("members",)}
    with Writer(file, replace=True) as writer:
        for name, content in members.items():
            with writer.member(name) as write:
                write(content)
        writer.finish(facts)


def test_a_line_without_an_end_is_not_gathered(file: Path) -> None:
    with Writer(file) as writer:
        with writer.member("versions.ndjson") as write:
            write(b"{}\n")
            for _ in range(65):
                write(b" " * 2**20)
        writer.finish({})
    with Archive(file) as archive:
        lines = archive.json_lines("versions.ndjson")
        assert next(lines) == {}
        with pytest.raises(DamagedArchive, match=r"line 2 of versions\.ndjson has more than 64 MB"):
            next(lines)


def test_rows_that_violate_a_check_are_not_restored(tracker: Tracker, file: Path) -> None:
    lists = {**DOCUMENT["tables"]["lists"], "checks": {"named": {"name": {"$ne": "Nowhere"}}}}
    tracker.apply({"tables": {**DOCUMENT["tables"], "lists": lists}})
    run("backup", tracker.environment_id, "--to", str(file))
    run("restore", str(file), "--branch-of", tracker.project.pk, "--name", "sound")

    def violate(members: Any, manifest: Any) -> None:
        members["rows/lists.copy"] = members["rows/lists.copy"].replace(b"Home", b"Nowhere")

    forged(file, violate)
    before = rows(tracker, "lists", tracker.environment_id)
    for target in (("--branch-of", tracker.project.pk, "--name", "b"), ("--into", tracker.environment_id, "--replace")):
        with pytest.raises(CommandError):
            run("restore", str(file), *target)
    assert rows(tracker, "lists", tracker.environment_id) == before


def test_a_file_that_contradicts_itself_is_refused(full: Tracker, file: Path) -> None:
    run("backup", full.environment_id, "--to", str(file))
    whole = file.read_bytes()

    def other_schema(members: Any, manifest: Any) -> None:
        members["schema.json"] = b'{"tables": {"x; DROP SCHEMA platform": {"columns": {}}}}'

    def missing_rows(members: Any, manifest: Any) -> None:
        members["rows/tasks.copy"] = b""

    def dangling(members: Any, manifest: Any) -> None:
        members["rows/lists.copy"] = b""
        next(table for table in manifest["tables"] if table["name"] == "lists")["rows"] = 0

    def infinite(members: Any, manifest: Any) -> None:
        members["rows/tasks.copy"] = members["rows/tasks.copy"].replace(b"0001-01-01", b"infinity")

    def too_long(members: Any, manifest: Any) -> None:
        members["rows/lists.copy"] = members["rows/lists.copy"].replace(b"Home", b"H" * 101)

    def never(members: Any, manifest: Any) -> None:
        first, *further = members["rows/lists.copy"].splitlines(keepends=True)
        *cells, _, updated_at = first.split(b"\t")
        members["rows/lists.copy"] = b"".join([b"\t".join([*cells, b"infinity", updated_at]), *further])

    def unreachable(members: Any, manifest: Any) -> None:
        _, cells = members["rows/lists.copy"].splitlines(keepends=True)[0].split(b"\t", 1)
        members["rows/lists.copy"] += b"query\t" + cells
        next(table for table in manifest["tables"] if table["name"] == "lists")["rows"] += 1

    def no_copy(members: Any, manifest: Any) -> None:
        members["rows/tasks.copy"] = b"what is this\n"

    def no_member(members: Any, manifest: Any) -> None:
        del members["rows/tasks.copy"]

    def other_columns(members: Any, manifest: Any) -> None:
        manifest["tables"][0]["columns"].reverse()

    def no_facts(members: Any, manifest: Any) -> None:
        del manifest["taken_at"]

    def bad_webhooks(members: Any, manifest: Any) -> None:
        members["webhooks.ndjson"] = b'{"url": 7}\n'

    def another_format(members: Any, manifest: Any) -> None:
        manifest["format"] = "something.else"

    def a_later_format(members: Any, manifest: Any) -> None:
        manifest["format_version"] = 2

    for change in (
        other_schema, missing_rows, dangling, infinite, too_long, never, unreachable, no_copy, no_member, other_columns, no_facts,
        bad_webhooks, another_format, a_later_format,
    ):  # fmt: skip
        forged(_written(file, whole), change)
        with pytest.raises(CommandError):
            run("restore", str(file), "--branch-of", full.project.pk, "--name", "b")
        if change is not bad_webhooks:  # which is not read there: the environment has its own
            with pytest.raises(CommandError):
                run("restore", str(file), "--into", full.environment_id, "--replace")
        assert nothing_has_changed(full), change.__name__
    assert len(rows(full, "tasks", full.environment_id)) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda versions: versions[:-1],
        lambda versions: versions[1:],
        lambda versions: [],
        lambda versions: [*versions, versions[-1]],
        lambda versions: [*versions, {**versions[-1], "version": 3}],
        lambda versions: [versions[0], [1]],
        *(
            lambda versions, facts=facts: [versions[0], {**versions[1], **facts}]
            for facts in (
                {"document_text": '{"tables": {}}'}, {"document_text": "no JSON"}, {"document_text": None},
                {"version": True}, {"applied_at": "yesterday"}, {"applied_at": None}, {"renames": 7},
                {"renames": {"tables": {"a": 1}, "columns": {}}}, {"operations": ["x"]}, {"author_kind": "x" * 11},
            )
        ),
    ],
)  # fmt: skip
def test_versions_that_are_not_those_of_the_schema_are_refused(
    full: Tracker, file: Path, change: Callable[[list[Any]], list[Any]]
) -> None:
    run("backup", full.environment_id, "--to", str(file))

    def forge(members: dict[str, bytes], manifest: dict[str, Any]) -> None:
        versions = [json.loads(line) for line in members["versions.ndjson"].splitlines()]
        members["versions.ndjson"] = b"".join(json.dumps(each).encode() + b"\n" for each in change(versions))

    assert "is complete" in run("restore", str(file), "--check")
    forged(file, forge)
    with pytest.raises(CommandError, match="damaged"):
        run("restore", str(file), "--check")


def test_a_schema_that_the_manifest_denies_is_refused(full: Tracker, file: Path) -> None:
    run("backup", full.environment_id, "--to", str(file))

    def deny(members: dict[str, bytes], manifest: dict[str, Any]) -> None:
        manifest["schema_version"], manifest["tables"] = 0, []

    forged(file, deny)
    with pytest.raises(CommandError, match="damaged"):
        run("restore", str(file), "--check")


def test_records_that_no_restore_would_read_are_found_by_looking(full: Tracker, file: Path) -> None:
    run("backup", full.environment_id, "--to", str(file))
    whole = file.read_bytes()

    def too_long(members: dict[str, bytes], manifest: dict[str, Any]) -> None:
        members["function_versions.ndjson"] = b'{"function":"hello","source":"%s"}\n' % (b"x" * 65 * 2**20)

    def too_few(members: dict[str, bytes], manifest: dict[str, Any]) -> None:
        members["function_versions.ndjson"] = members["function_versions.ndjson"].splitlines(keepends=True)[0]

    def no_object(members: dict[str, bytes], manifest: dict[str, Any]) -> None:
        members["webhooks.ndjson"] = b"[1]\n"

    def no_numbers(members: dict[str, bytes], manifest: dict[str, Any]) -> None:
        manifest["parts"] = ["webhooks"]

    for change in (too_long, too_few, no_object, no_numbers):
        forged(_written(file, whole), change)
        with pytest.raises(CommandError, match="damaged"):
            run("restore", str(file), "--check")


REFUSED: list[tuple[list[str], str]] = [
    (["--branch-of", "PROJECT"], "go together"),
    (["--into", "ENV", "--name", "x"], "go together"),
    (["--branch-of", "PROJECT", "--name", "Not So"], "lower-case"),
    (["--branch-of", "PROJECT", "--name", "production"], "has an environment called production"),
    (["--branch-of", "prj_01h455vb4pex5vsknk084sn02q", "--name", "x"], "no project"),
    (["--branch-of", "PROJECT", "--name", "x", "--replace"], "always new"),
    (["--into", "env_01h455vb4pex5vsknk084sn02q"], "no environment"),
]


def test_what_the_command_refuses(tracker: Tracker, file: Path) -> None:
    run("backup", tracker.environment_id, "--to", str(file))
    environments = {"PROJECT": tracker.project.pk, "ENV": tracker.environment_id}
    for arguments, says in REFUSED:
        with pytest.raises(CommandError, match=says):
            run("restore", str(file), *[environments.get(each, each) for each in arguments])
    assert Environment.objects.count() == 2


def test_a_file_is_never_overwritten_unasked_nor_left_half_done(tracker: Tracker, file: Path) -> None:
    file.write_text("mine")
    with pytest.raises(CommandError, match="exists. Name another file"):
        run("backup", tracker.environment_id, "--to", str(file))
    assert file.read_text() == "mine"
    with pytest.raises(CommandError, match="cannot be written"):
        run("backup", tracker.environment_id, "--to", str(file.parent / "no" / "such.zip"))
    with pytest.raises(RuntimeError):
        _interrupted(file)
    assert file.read_text() == "mine"
    assert os.listdir(file.parent) == [file.name]
    with pytest.raises(CommandError, match="cannot be read"):
        run("restore", str(file.parent / "nothing.zip"), "--check")


def _interrupted(file: Path) -> None:
    with Writer(file, replace=True) as writer:
        with writer.member("x") as write:
            write(b"half")
        raise RuntimeError


def test_what_a_killed_backup_left_is_in_no_other_ones_way(tracker: Tracker, file: Path) -> None:
    """Of the same process number, as each has in a container."""
    killed = Writer(file).__enter__()
    for replacing in ([], ["--replace"]):
        assert "version 1" in run("backup", tracker.environment_id, "--to", str(file), *replacing)
    left = [each for each in file.parent.iterdir() if each != file]
    assert left == [killed.unfinished]
    assert stat.S_IMODE(killed.unfinished.stat().st_mode) == 0o600
    assert killed.unfinished.name.endswith(".part")
    killed.__exit__(OSError, OSError(), None)


def test_check_says_what_it_is(tracker: Tracker, file: Path) -> None:
    run("backup", tracker.environment_id, "--to", str(file))
    said = run("restore", str(file), "--check")
    assert "is complete: version 1, 4 tables" in said
    assert tracker.environment_id in said


def test_the_quota_holds_for_restored_branches(tracker: Tracker, branch: Branch, file: Path) -> None:
    run("backup", tracker.environment_id, "--to", str(file))
    for number in range(3):
        assert branch(f"b{number}").status == 201
    with pytest.raises(CommandError, match="allows 3 preview branches"):
        run("restore", str(file), "--branch-of", tracker.project.pk, "--name", "b3")
    assert len(schemas_in(REGION)) == 5


def test_periodic_job_marks_a_filled_branch_ready(tracker: Tracker, file: Path) -> None:
    """Another session deletes a user of the environment, slowly; restored rows stay."""
    run("backup", tracker.environment_id, "--to", str(file))
    url = settings.LAYOUT.postgres_url(str(connections["default"].settings_dict["NAME"]))
    with psycopg.connect(url) as other:
        other.execute("SELECT pg_advisory_xact_lock_shared(hashtextextended(%s, 4))", [tracker.environment_id])
        said = run("restore", str(file), "--branch-of", tracker.project.pk, "--name", "b")
        made = Environment.objects.get(name="b")
        assert made.pk in said
        assert made.status == "creating"
        assert "has the status `creating`" in said
        assert f"GET /v1/projects/{tracker.project.pk}/environments/{made.pk}." in said
    tasks.finish_branches()
    made.refresh_from_db()
    assert made.status == "ready"
    assert rows(tracker, "tasks", made.pk) == rows(tracker, "tasks", tracker.environment_id)


def during(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> list[Any]:
    """What the call returns, which is made by another thread while a backup is being restored."""
    build, returned = restore._build, list[Any]()

    def building(*arguments: Any) -> Any:
        thread = threading.Thread(target=lambda: returned.append(in_thread(call)))
        thread.start()
        thread.join()
        return build(*arguments)

    monkeypatch.setattr(restore, "_build", building)
    return returned


def test_a_restore_under_way_is_left_alone(tracker: Tracker, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("backup", tracker.environment_id, "--to", str(file))
    returned = during(monkeypatch, tasks.finish_branches)
    run("restore", str(file), "--branch-of", tracker.project.pk, "--name", "b")
    assert returned == [None]
    assert Environment.objects.get(name="b").status == "ready"


def test_tables_that_are_made_during_a_restore_stay(
    tracker: Tracker, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("backup", tracker.environment_id, "--to", str(file))
    target = environment_ref(environment_of(tracker.project, "development").pk)
    assert target is not None
    document = {"tables": {"other": {"columns": {"body": {"type": "text"}}}}}
    returned = during(monkeypatch, lambda: schema_service.change(target, document, actor=audit.SYSTEM).version)
    with pytest.raises(CommandError, match="--replace"):
        run("restore", str(file), "--into", target.environment_id)
    assert returned == [1]
    assert schema_versions.current(target).schema.tables.keys() == {"other"}


def test_what_others_hold_keeps_a_restore_from_anything(
    tracker: Tracker, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_settings, "LOCK_TIMEOUT_MS", 200)
    run("backup", tracker.environment_id, "--to", str(file))
    before = rows(tracker, "tasks", tracker.environment_id)
    url = settings.LAYOUT.postgres_url(str(connections[REGION].settings_dict["NAME"]))
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE platform.rows_pendinguserreferences IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(CommandError, match="Nothing was changed; try again"):
            run("restore", str(file), "--into", tracker.environment_id, "--replace")
    assert rows(tracker, "tasks", tracker.environment_id) == before
    assert CurrentVersion.objects.using(REGION).get(pk=tracker.environment_id).version == 1
    assert not AuditEntry.objects.filter(action="environment.restored").exists()


def _two_of_each(full: Tracker) -> None:
    body = {"url": "https://hooks.example.com/second", "events": ["lists.*"]}
    assert full.post("owner", "/webhooks", body).status == 201
    Function.objects.using(REGION).create(
        environment_id=full.environment_id, name="second", active_version=1, last_version=1, timeout_ms=700,
        memory_mb=64,
    )  # fmt: skip


@pytest.mark.parametrize("part", ["webhooks", "functions"])
def test_the_plan_counts_what_comes_back(full: Tracker, file: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    _two_of_each(full)
    run("backup", full.environment_id, "--to", str(file))
    elsewhere = make_project(User.objects.get(email="owner@tracker.example"), "Elsewhere", region="eu-west-1")
    target = environment_of(elsewhere).pk
    limits: dict[str, Any] = {f"{part}_per_environment": 1}
    monkeypatch.setattr(plans, "PLANS", {**plans.PLANS, "free": replace(plans.PLANS["free"], **limits)})
    for where in (["--into", target], ["--branch-of", full.project.pk, "--name", "b"]):
        with pytest.raises(CommandError, match=f"allows 1 {part}.*Nothing was changed"):
            run("restore", str(file), *where)
    assert not Environment.objects.filter(name="b").exists()
    assert not CurrentVersion.objects.using("eu-west-1").filter(version__gt=0).exists()
    assert not Webhook.objects.using("eu-west-1").exists()
    assert not Function.objects.using("eu-west-1").exists()
    # Where they stay behind they count nothing.
    run("restore", str(file), "--into", full.environment_id, "--replace")


def test_who_subscribes_while_a_backup_comes_back_is_counted(
    full: Tracker, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("backup", full.environment_id, "--to", str(file))
    owner = full.tokens["owner"]
    elsewhere = make_project(User.objects.get(email="owner@tracker.example"), "Elsewhere", region="eu-west-1")
    target = environment_of(elsewhere).pk
    free = replace(plans.PLANS["free"], webhooks_per_environment=1)
    monkeypatch.setattr(plans, "PLANS", {**plans.PLANS, "free": free})
    answers: list[Any] = []

    def subscribe() -> None:
        body = {"url": "https://hooks.example.com/meanwhile", "events": ["comments.*"]}
        answers.append(full.api.post("/v1/webhooks", token=owner, environment=target, json=body))

    thread = threading.Thread(target=subscribe)
    refresh = subscriptions.refresh

    def refreshed(environment_id: str, using: str) -> None:
        refresh(environment_id, using)
        if threading.current_thread() is threading.main_thread():
            thread.start()
            wait_until(lambda: bool(answers) or _is_waiting("eu-west-1"))

    monkeypatch.setattr(subscriptions, "refresh", refreshed)
    run("restore", str(file), "--into", target)
    thread.join()
    assert [(answer.status, answer.error) for answer in answers] == [(422, "quota_exceeded")]
    assert Webhook.objects.using("eu-west-1").get().disabled_reason == "restored"


def _is_waiting(cluster: str) -> bool:
    with connections[cluster].cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)")
        return bool(cursor.fetchone()[0])


def test_the_subscription_of_a_terminal_goes_into_no_backup(full: Tracker, file: Path) -> None:
    with Listener(environment_ref(full.environment_id), "http://127.0.0.1:9/", ["tasks.*"]):
        assert "1 webhook," in run("backup", full.environment_id, "--to", str(file))


@pytest.mark.parametrize(
    ("failpoint", "status"), [("restore.before_region_commit", "failed"), ("restore.after_region_commit", "ready")]
)
def test_killed_while_it_restores(tracker: Tracker, file: Path, run_and_kill: Run, failpoint: str, status: str) -> None:
    run("backup", tracker.environment_id, "--to", str(file))
    order = {"do": "restore", "file": str(file), "project": tracker.project.pk, "name": "b"}
    assert run_and_kill(**order, failpoint=failpoint)["signal"] == 9
    made = Environment.objects.get(name="b")
    assert made.status == "creating"
    owner = tracker.tokens["owner"]
    assert tracker.api.get("/v1/rows/tasks", token=owner, environment=made.pk).status == 404
    tasks.finish_branches()
    made.refresh_from_db()
    assert made.status == status
    if status == "ready":
        assert rows(tracker, "tasks", made.pk) == rows(tracker, "tasks", tracker.environment_id)
    else:
        assert made.pk not in schemas_in(REGION)
        assert "interrupted" in tracker.api.get(address(tracker, made.pk), token=owner).json["status_reason"]
        assert tracker.api.delete(address(tracker, made.pk), token=owner).status == 204
