"""Parse Server with the data set of `tests.benchmarks.rows`: installed from npm, filled, run and stopped. Used by
`tests.benchmarks.peers`.

Its database is one of the measured service's PostgreSQL. Rows are written by SQL; classes, users and sessions are made
by its API. Permissions of the classes admit the user to whom a row points as its owner.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import httpx
from psycopg import sql

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout
from tests.benchmarks import peer_process
from tests.benchmarks.rows import ASKING, EACH, LISTS, OWNERS, TASKS, request

VERSION = "9.10.0"
PROCESSES = 2
ROWS = "/parse/classes/Task"
APPLICATION = {"X-Parse-Application-Id": "peer"}
ADMIN = APPLICATION | {"X-Parse-Master-Key": "a master key for loopback"}
DATABASE = "parse"
PROGRAM = """
const cluster = require("node:cluster");
const express = require("express");
const { ParseServer } = require("parse-server");

async function serve({ port, processes, masterKey, databaseURI, host }) {
  if (cluster.isPrimary && processes > 1) {
    for (let number = 0; number < processes; number++) cluster.fork();
    return;
  }
  const server = new ParseServer({
    appId: "peer", masterKey, databaseURI, databaseOptions: { host, max: 20 },
    serverURL: `http://127.0.0.1:${port}/parse`, allowCustomObjectId: true, silent: true, logsFolder: null,
    cloud: (Parse) => Parse.Cloud.define("sum", ({ params }) => ({ sum: params.a + params.b })),
  });
  await server.start();
  express().use("/parse", server.app).listen(port, "127.0.0.1");
}

serve(JSON.parse(process.env.PEER));
"""
OWN: Final = {"pointerFields": ["owner"]}
PERMISSIONS: Final = {"get": OWN, "find": OWN, "update": OWN, "create": {}, "delete": OWN}


def pointer(to: str) -> dict[str, Any]:
    return {"type": "Pointer", "targetClass": to}


CLASSES: Final[dict[str, dict[str, Any]]] = {
    "List": {"name": {"type": "String"}, "owner": pointer("_User")},
    "Task": {
        "title": {"type": "String"},
        "notes": {"type": "String"},
        "done": {"type": "Boolean"},
        "priority": {"type": "Number"},
        "due_on": {"type": "Date"},
        "tags": {"type": "Array"},
        "status": {"type": "String"},
        "list": pointer("List"),
        "owner": pointer("_User"),
    },
}


def install(folder: Path) -> Path | None:
    """The folder with the package, from npm. None without npm."""
    npm, target = shutil.which("npm"), folder / f"parse-server-{VERSION}"
    if npm is None:
        return None
    if not (target / "node_modules" / "parse-server").exists():
        options = ["--prefix", str(target), "--no-audit", "--no-fund", "--silent", f"parse-server@{VERSION}"]
        subprocess.run([npm, "install", *options], check=True, timeout=600)
    return target


class ParseServer:
    """One Parse Server on loopback. `requests` are the workloads by name, as `peers` asks for them."""

    def __init__(self, installed: Path, layout: Layout) -> None:
        self._installed, self._layout = installed, layout
        self._node = shutil.which("node") or "node"
        self.sessions: list[dict[str, str]] = []
        """The headers of the first owners, once `requests` was called."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]

    @contextlib.contextmanager
    def running(self, processes: int = PROCESSES) -> Iterator[httpx.Client]:
        """Serves for that long, with a client whose requests have the master key."""
        url = urlsplit(self._layout.postgres_url(DATABASE))
        facts = {
            "port": self.port,
            "processes": processes,
            "masterKey": ADMIN["X-Parse-Master-Key"],
            "databaseURI": f"postgres://{url.username}:{url.password}@localhost/{DATABASE}",
            "host": str(self._layout.sockets),
        }
        program = self._installed / "peer.js"
        program.write_text(PROGRAM)
        environment = os.environ | {"PEER": json.dumps(facts), "NODE_ENV": "production"}
        url, command = f"http://127.0.0.1:{self.port}", [self._node, str(program)]
        with peer_process.running(
            "Parse Server", command, url, "/parse/health", env=environment, cwd=self._installed
        ) as client:
            client.headers.update(ADMIN)
            yield client

    def fill(self) -> None:
        """Classes by the API, rows by SQL."""
        with embedded_postgres.connect(self._layout) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER platform").format(sql.Identifier(DATABASE)))
        with self.running(processes=1) as client:
            for name, fields in CLASSES.items():
                made = {"className": name, "fields": fields, "classLevelPermissions": PERMISSIONS}
                client.post(f"/parse/schemas/{name}", json=made).raise_for_status()
        with embedded_postgres.connect(self._layout, DATABASE) as connection:
            connection.execute(
                'INSERT INTO "List" ("objectId", "createdAt", "updatedAt", name, owner)'
                " SELECT 'l' || lpad(n::text, 9, '0'), now(), now(), 'List ' || n, 'u' || lpad((n %% %s)::text, 9, '0')"
                " FROM generate_series(0, %s) n",
                [OWNERS, LISTS - 1],
            )
            connection.execute(
                'INSERT INTO "Task" ("objectId", "createdAt", "updatedAt", title, notes, done, priority, due_on, tags,'
                " status, list, owner) SELECT 't' || lpad(n::text, 9, '0'),"
                " timestamptz '2026-01-01' + n * interval '1 minute', now(), 'Task number ' || n,"
                " repeat('note ', n %% 20), n %% 3 = 0, n %% 5, date '2026-01-01' + n %% 300, '[\"a\", \"b\"]', 'open',"
                " 'l' || lpad((n %% %s)::text, 9, '0'), 'u' || lpad((n %% %s)::text, 9, '0')"
                " FROM generate_series(0, %s) n",
                [LISTS, OWNERS, TASKS - 1],
            )
            connection.execute('CREATE INDEX ON "Task" (owner, "createdAt" DESC)')
            connection.execute('VACUUM ANALYZE "Task"')

    def requests(self, password: str) -> dict[str, list[bytes]]:
        """The workloads, by 64 owners with sessions."""
        for n in range(ASKING):
            body = {"objectId": user(n), "username": user(n), "password": password}
            made = httpx.post(f"http://127.0.0.1:{self.port}/parse/users", json=body, headers=APPLICATION)
            session = made.raise_for_status().json()["sessionToken"]
            self.sessions.append(APPLICATION | {"X-Parse-Session-Token": session})
        where = quote('{"done":false}')
        listed = f"{ROWS}?where={where}&order=-createdAt&limit=20"
        own = [(session, task(n + OWNERS * each)) for each in range(EACH) for n, session in enumerate(self.sessions)]
        ask = lambda method, path, headers, body=None: request(self.port, method, path, None, body, headers)  # noqa: E731
        return {
            "retrieve": [ask("GET", f"{ROWS}/{row}", session) for session, row in own],
            "retrieve with its list": [ask("GET", f"{ROWS}/{row}?include=list", session) for session, row in own],
            "list of 20": [ask("GET", listed, session) for session in self.sessions],
            "update": [ask("PUT", f"{ROWS}/{row}", s, {"priority": n % 7}) for n, (s, row) in enumerate(own)],
            "warm function": [ask("POST", "/parse/functions/sum", self.sessions[0], {"a": 2, "b": 3})],
            "sign in": [
                ask("POST", "/parse/login", APPLICATION, {"username": user(n), "password": password})
                for n in range(ASKING)
            ],
        }  # fmt: skip


def user(number: int) -> str:
    return f"u{number:09}"


def task(number: int) -> str:
    return f"t{number:09}"
