"""What tests of live changes share: a stream that is read, and a project of its own on the whole service."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, Queue
from typing import Any
from uuid import uuid4

import httpx
import psycopg

from platform_site.embedded.data_dir import Layout
from tests.support.service import Up

MINE = {"owner_id": "$user.id"}
IN_TEAM = {"team.members": {"$some": {"member_id": "$user.id"}}}
DOCUMENT: dict[str, Any] = {
    "tables": {
        "teams": {
            "columns": {"name": {"type": "text", "null": True}, "note": {"type": "text", "null": True}},
            "rules": {"user": {"read": {"where": {"members": {"$some": {"member_id": "$user.id"}}}}}},
        },
        "posts": {
            "columns": {"team": {"type": "reference", "to": "teams", "on_delete": "cascade"}},
            "rules": {"user": {"read": {}}},
        },
        "members": {
            "columns": {
                "team": {"type": "reference", "to": "teams", "on_delete": "cascade"},
                "member": {"type": "user", "null": True},
                "label": {"type": "text", "null": True},
            },
            "rules": {},
        },
        "tasks": {
            "columns": {
                "title": {"type": "text"},
                "rank": {"type": "integer", "null": True},
                "amount": {"type": "decimal", "precision": 10, "scale": 2, "null": True},
                "secret": {"type": "text", "null": True},
                "owner": {"type": "user", "null": True},
            },
            "rules": {
                "user": {"read": {"where": MINE, "columns": ["*", "-secret"]}, "insert": {"set": MINE},
                         "update": {"where": MINE, "columns": ["title", "rank", "owner_id"]}, "delete": {"where": MINE}},
                "editor": {"read": {}},
                "anonymous": {"read": {"where": {"rank": 1}, "columns": ["title", "rank"]}},
            },
        },
        "notes": {
            "columns": {
                "body": {"type": "text"},
                "team": {"type": "reference", "to": "teams", "on_delete": "cascade"},
            },
            "rules": {"user": {"read": {"where": IN_TEAM}}},
        },
    },
}  # fmt: skip
TASKS = {"tasks": {"table": "tasks"}}
READY: tuple[str, Any] = ("ready", {})


class Live:
    """An open stream, read by a thread of its own, with a `pause` after each line."""

    def __init__(
        self, client: httpx.Client, subscriptions: Any, last_id: str | None = None, pause: float = 0.0
    ) -> None:
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        request = client.build_request("POST", "/changes", json={"subscriptions": subscriptions}, headers=headers)
        self.response = client.send(request, stream=True)
        self.last_id = last_id
        self._pause = pause
        self._is_closed = False
        self._events: Queue[tuple[str, Any, str | None]] = Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        message: dict[str, str] = {}
        try:
            for line in self.response.iter_lines():
                if self._pause:
                    time.sleep(self._pause)
                if line:
                    name, _, value = line.partition(": ")
                    message[name] = value
                else:
                    self._events.put((message["event"], json.loads(message["data"]), message.get("id")))
                    message = {}
        except (httpx.HTTPError, httpx.StreamError):
            pass
        except AssertionError:  # h11's, where the connection is closed while this thread reads
            if not self._is_closed:
                raise
        self._events.put(("closed", {}, None))

    def next_with_id(self, seconds: float = 10) -> tuple[str, Any, str | None]:
        """Raises Empty."""
        return self._events.get(timeout=seconds)

    def next(self, seconds: float = 10) -> tuple[str, Any]:
        kind, data, last_id = self.next_with_id(seconds)
        self.last_id = last_id or self.last_id
        return kind, data

    def is_silent(self, seconds: float = 1.2) -> bool:
        try:
            raise AssertionError(self._events.get(timeout=seconds))
        except Empty:
            return True

    def close(self) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):  # while a thread waits for data, closing alone tells the server nothing
            self.response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        self.response.close()


class App:
    """A project of its own, its owner, two users, and keys."""

    def __init__(self, served: Up) -> None:
        self.served = served
        self.clients: dict[str, httpx.Client] = {}
        self.users: dict[str, str] = {}
        account = served.facts["account"]
        self.sign_in("owner", account["email"], account["password"], None)
        made = self.ok("owner", "POST", "/projects", name=f"Live {uuid4()}", region="us-east-1")
        self.project_id = made["id"]
        [self.environment] = [each["id"] for each in made["environments"] if each["name"] == "production"]
        self.clients["owner"].headers["X-Environment"] = self.environment
        self.ok("owner", "PUT", "/schema", document=DOCUMENT)
        for name in ("ada", "bob"):
            self.add_user(name)
        for name, scopes in (("server", ["rows:read", "rows:write", "rows:bypass_rules"]), ("page", ["rows:read"])):
            key = self.ok("owner", "POST", "/keys", name=name, scopes=scopes, publishable=name == "page",
                          environment_id=self.environment)  # fmt: skip
            self.users[name] = key["id"]
            self.clients[name] = self._client(key["secret"])

    def _client(self, token: str | None = None) -> httpx.Client:
        client = httpx.Client(base_url=f"{self.served.base_url}/v1", timeout=20)
        if token is not None:
            client.headers["Authorization"] = f"Bearer {token}"
        return client

    def add_user(self, name: str) -> None:
        email, password = f"{name}-{uuid4()}@example.com", "correct horse battery"
        self.users[name] = self.ok("owner", "POST", "/users", email=email, password=password)["id"]
        self.sign_in(name, email, password, self.environment)

    def database(self, name: str = "region_us_east_1") -> psycopg.Connection[Any]:
        return psycopg.connect(Layout(self.served.data_dir).postgres_url(name))

    def sign_in(self, name: str, email: str, password: str, environment: str | None) -> None:
        client = self._client()
        if environment is not None:
            client.headers["X-Environment"] = environment
        grant = {"grant_type": "password", "email": email, "password": password}
        answer = client.post("/auth/token", json=grant)
        assert answer.status_code == 200, answer.text
        client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
        self.clients[name] = client

    def ok(self, who: str, method: str, path: str, **body: Any) -> Any:
        answer = self.clients[who].request(method, path, json=body or None)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def close(self) -> None:
        """The service is shared: leave it as it was."""
        self.ok("owner", "DELETE", f"/projects/{self.project_id}")

    def put(self, table: str, **values: Any) -> Any:
        return self.ok("server", "POST", f"/rows/{table}", **values)

    def change(self, table: str, row_id: str, **values: Any) -> Any:
        return self.ok("server", "PATCH", f"/rows/{table}/{row_id}", **values)

    @contextmanager
    def live(self, who: str = "ada", subscriptions: Any = TASKS, last_id: str | None = None) -> Iterator[Live]:
        stream = Live(self.clients[who], subscriptions, last_id)
        try:
            assert stream.response.status_code == 200, stream.response.read()
            yield stream
        finally:
            stream.close()

    def refused(self, who: str, subscriptions: Any, last_id: str | None = None) -> tuple[int, dict[str, str]]:
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        answer = self.clients[who].post("/changes", json={"subscriptions": subscriptions}, headers=headers)
        fields = answer.json()["error"].get("fields", [])
        return answer.status_code, {each["field"]: each["code"] for each in fields}
