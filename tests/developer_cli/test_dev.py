"""`dev`: a saved file is pushed; half of one is not."""

import json
import signal
import threading
import time
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest

from tests.support.backend_files import SCHEMA, SUM, Files
from tests.support.developer_cli import Cli

pytestmark = pytest.mark.served


class Dev:
    """A running `platform dev --json`, its results and its errors in the order in which they come."""

    def __init__(self, cli: Cli) -> None:
        self.process = cli.process("dev", "--json")
        self._said: Queue[dict[str, Any]] = Queue()
        for stream in (self.process.stdout, self.process.stderr):
            threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: Any) -> None:
        for line in stream:
            self._said.put(json.loads(line))

    def next(self) -> dict[str, Any]:
        return self._said.get(timeout=20)

    def changes(self) -> list[str]:
        said = self.next()
        assert "changes" in said, said
        return [each["change"] for each in said["changes"]]


@pytest.fixture
def files(cli: Cli) -> Iterator[Files]:
    cli.run("branch", "create", "dev", "--from", "development", "--use")
    yield Files(cli)
    cli.run("branch", "delete", "dev", "--yes")


def test_saved_files_are_pushed(files: Files) -> None:
    cli = files.cli
    files.write("schema.json", SCHEMA)
    cli.run("types", "--role", "server")
    dev = Dev(cli)
    assert dev.changes() == ["create table items"]
    files.write("functions/sum.ts", SUM)
    said = dev.next()
    assert [each["change"] for each in said["changes"]] == ["create function sum"]
    assert json.loads(cli.run("invoke", "sum", '{"a": 1, "b": 2}').stdout) == {"sum": 3}

    # Half of a file, then a mistake: nothing changes, and the command goes on.
    text = json.dumps(SCHEMA)
    files.write("schema.json", text[: len(text) // 2])
    assert dev.next()["error"]["code"] == "invalid_file"
    files.write("functions/sum.ts", "export default async () => {")
    assert dev.next()["error"]["code"] == "invalid_file"
    wider = json.loads(text)
    wider["tables"]["items"]["columns"]["more"] = {"type": "integer", "null": True}
    files.write("schema.json", wider)
    # The attempt at the function alone, which follows the error above, may already find the new schema.
    errors = [dev.next()]
    while "error" in (said := dev.next()):
        errors.append(said)
    assert {each["error"]["fields"][0]["code"] for each in errors} == {"does_not_load"}
    assert [each["change"] for each in said["changes"]] == ["add column items.more"], (
        "a file that fails blocks no other"
    )
    files.write("functions/sum.ts", SUM + "// again")
    assert dev.changes() == ["change function sum: source"]
    types = (cli.folder / "types.ts").read_text()
    assert "more" in types
    assert 'as the role "server"' in types

    # What loses data is left to `push`.
    files.write("schema.json", SCHEMA)
    error = dev.next()["error"]
    assert error["hint"] == 'Run: platform push --confirm "drop column items.more"'
    time.sleep(0.5)  # Python prints a line twice if a signal comes while it prints
    dev.process.send_signal(signal.SIGINT)
    assert dev.next()["error"]["code"] == "interrupted"
    assert dev.process.wait(20) == 130


def test_a_removed_function_is_reported_as_still_deployed(files: Files) -> None:
    files.write("functions/sum.ts", SUM)
    dev = files.cli.process("dev")
    said: Queue[str] = Queue()
    for stream in (dev.stdout, dev.stderr):
        threading.Thread(target=lambda stream=stream: [*map(said.put, stream)], daemon=True).start()
    lines = [said.get(timeout=20), said.get(timeout=20)]
    assert any("create function sum" in line for line in lines), lines
    (files.folder / "functions/sum.ts").unlink()
    line = said.get(timeout=20)
    assert line == "Function sum stays in the environment. Delete it: platform functions delete sum\n"
    dev.send_signal(signal.SIGINT)
    assert dev.wait(20) == 130


def test_an_environment_that_is_gone_ends_it(files: Files) -> None:
    files.write("schema.json", SCHEMA)
    gone = "env_" + "0" * 26
    assert files.cli.error("dev", "-e", gone, code=5)["code"] == "not_found"
    link = files.cli.folder / "platform.json"
    linked = link.read_text()
    link.write_text(json.dumps({**json.loads(linked), "environment": gone}))  # as after a teammate deleted the branch
    assert files.cli.error("dev", code=5)["hint"] == "Link this folder to another one: platform link"
    link.write_text(linked)


def test_files_that_cannot_be_read_do_not_end_it(files: Files) -> None:
    schema, types = files.folder / "schema.json", files.cli.folder / "types.ts"
    files.write("schema.json", "{")
    dev = Dev(files.cli)
    assert dev.next()["error"]["message"].startswith("backend/schema.json:1: ")
    schema.write_bytes(b'{\n"\xff": {}}')
    assert dev.next()["error"]["message"] == "backend/schema.json:2: this is not UTF-8."
    schema.unlink()
    assert dev.changes() == []
    schema.mkdir()
    assert dev.next()["error"]["message"] == "backend/schema.json cannot be read: Is a directory."
    schema.rmdir()
    assert dev.changes() == []
    types.mkdir()
    files.write("schema.json", SCHEMA)
    assert dev.changes() == ["create table items"]
    types.rmdir()
    files.write("functions/sum.ts", SUM)
    assert dev.changes() == ["create function sum"]
    dev.process.send_signal(signal.SIGINT)
    assert dev.process.wait(20) == 130
