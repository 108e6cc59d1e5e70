"""A marker in every hidden cell and every secret, and the whole service queried through every entry point. Whatever it
says, keeps or sends is searched for them: answers, logs, metrics, pages of the console, receivers, databases, Valkey.

Each marker is also looked for where it has to be (the operator's answer, the one answer that shows a secret), so that a
marker that was never planted fails the test.
"""

import base64
import gzip
import json
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest
from psycopg import sql

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import REGIONS, Layout, region_database
from tests.support import valkey as embedded_valkey
from tests.support.receiver import Receiver
from tests.support.service import ROOT, Up, wait_for

pytestmark = pytest.mark.served

OWN = {"owner_id": "$user.id"}
VISIBLE = ["*", "-internal", "-salary", "-facts", "-labels"]


def document() -> dict[str, Any]:
    """Hidden from users and keys alike: four columns, a table, and for users the rows of others."""
    hidden = {
        "internal": {"type": "text", "null": True},
        "salary": {"type": "decimal", "precision": 30, "scale": 1, "null": True},
        "facts": {"type": "json", "null": True},
        "labels": {"type": "text[]", "null": True},
    }
    return {
        "tables": {
            "lists": {
                "columns": {"name": {"type": "text"}, "owner": {"type": "user"}},
                "rules": {"user": {"read": {"where": OWN}}},
            },
            "tasks": {
                "columns": {
                    "title": {"type": "text"},
                    "note": {"type": "text", "null": True},
                    "list": {"type": "reference", "to": "lists", "on_delete": "cascade", "null": True},
                    "owner": {"type": "user"},
                    **hidden,
                },
                "unique": [["internal"], ["title", "salary"]],
                "rules": {
                    "user": {
                        "read": [
                            {"where": OWN, "columns": VISIBLE},
                            {"where": {"title": "shared"}, "columns": ["title"]},
                        ],
                        "insert": {"set": OWN, "columns": ["title", "note", "list_id"]},
                        "update": {
                            "where": OWN,
                            "check": {"$or": [{"internal": {"$ne": "locked"}}, {"note": {"$null": True}}]},
                            "columns": ["title", "note"],
                        },
                        "delete": {"where": OWN},
                    },
                    "server": {
                        "read": {"columns": VISIBLE},
                        "insert": {"columns": VISIBLE},
                        "update": {"columns": VISIBLE},
                        "delete": {},
                    },
                },
            },
            "vault": {"columns": {"body": {"type": "text"}, "task": {"type": "reference", "to": "tasks", "null": True}},
                      "rules": {"server": {}}},
        }
    }  # fmt: skip


@dataclass
class Markers:
    """The markers by what holds them. `found` compares bytes, also as they look in base64, in a URL and under gzip."""

    values: dict[str, str] = field(default_factory=dict)

    def new(self, name: str, form: Callable[[str], str] = lambda word: f"mk-{word}-mk") -> str:
        """A value of its own for `name`, in the form that the place asks for."""
        self.values[name] = form(secrets.token_hex(8))
        return self.values[name]

    def known(self, name: str, value: str) -> str:
        """A secret that the service made."""
        self.values[name] = value
        return value

    def found(self, text: bytes, *, allowed: tuple[str, ...] = ()) -> set[str]:
        """The names of the markers in `text`, but for those that may be there."""
        texts = [text, unquote(text.decode("utf-8", "replace")).encode()]
        for word in re.findall(rb"[A-Za-z0-9_+/-]{24,}", text)[:2000]:
            for decode in (base64.urlsafe_b64decode, base64.b64decode):
                try:
                    texts.append(decode(word + b"=" * (-len(word) % 4)))
                except ValueError:
                    continue
        if text[:2] == b"\x1f\x8b":
            texts.append(gzip.decompress(text))
        return {
            name
            for name, value in self.values.items()
            if name not in allowed and any(value.encode() in one for one in texts)
        }


@dataclass
class Sweep:
    """Sends requests as a given caller and fails on any response that contains a marker."""

    client: httpx.Client
    environment_id: str
    markers: Markers
    tokens: dict[str, str] = field(default_factory=dict)
    asked: int = 0
    statuses: set[int] = field(default_factory=set)

    def ask(
        self,
        who: str | None,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        *,
        shows: tuple[str, ...] = (),
        may_show: tuple[str, ...] = (),
    ) -> httpx.Response:
        """One request. `shows` names the markers that its answer must have, `may_show` those that it may have."""
        headers = {"X-Environment": self.environment_id, **(headers or {})}
        if who is not None:
            headers["Authorization"] = f"Bearer {self.tokens[who]}"
        content = {} if body is None else {"json": body}
        answer = self.client.request(method, f"/v1/{path}", headers=headers, **content)
        said = repr(answer.headers.multi_items()).encode() + answer.content
        found = self.markers.found(said)
        assert set(shows) <= found <= {*shows, *may_show}, (who, method, path, body, found, said[:3000])
        assert answer.status_code < 500, (method, path, body, answer.text)
        self.asked += 1
        self.statuses.add(answer.status_code)
        return answer


@pytest.fixture
def sweep(served: Up) -> Iterator[Sweep]:
    """A project of its own in the service, with alice, bob and keys; gone afterwards."""
    with httpx.Client(base_url=served.base_url, timeout=30) as client:
        account = served.facts["account"]
        signed_in = client.post(
            "/v1/auth/token", json={"grant_type": "password", **_only(account, "email", "password")}
        )
        headers = {"Authorization": f"Bearer {signed_in.json()['access_token']}"}
        project = client.post("/v1/projects", json={"name": "Markers"}, headers=headers).json()
        [environment] = [one["id"] for one in project["environments"] if one["name"] == "production"]
        made = Sweep(client, environment, Markers(), {"owner": signed_in.json()["access_token"]})
        yield made
        assert client.delete(f"/v1/projects/{project['id']}", headers=headers).status_code == 204


def _only(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names}


def plant_people(sweep: Sweep) -> dict[str, str]:
    """alice and bob with passwords, tokens and claims, and two keys. Their ids."""
    people = {}
    for who in ("alice", "bob"):
        password = sweep.markers.new(f"password of {who}")
        body = {"email": f"{who}@markers.example", "password": password, "name": who}
        claim = sweep.markers.new(f"claim of {who}")
        made = sweep.ask("owner", "POST", "users", {**body, "claims": {"team": claim}}, shows=(f"claim of {who}",))
        assert made.status_code == 201, made.text
        people[who] = made.json()["id"]
        credentials = {"grant_type": "password", "email": body["email"], "password": password}
        pair = sweep.client.post(
            "/v1/auth/token", json=credentials, headers={"X-Environment": sweep.environment_id}
        ).json()
        assert sweep.markers.found(json.dumps(pair).encode()) == set()
        sweep.tokens[who] = sweep.markers.known(f"access token of {who}", pair["access_token"])
        sweep.markers.known(f"refresh token of {who}", pair["refresh_token"])
    for who, scopes in {
        "key": ["rows:read", "rows:write", "schema:read", "webhooks:read", "functions:invoke", "functions:read"],
        "operator": ["rows:read", "rows:write", "rows:bypass_rules"],
    }.items():
        body = {"name": who, "scopes": scopes, "environment_id": sweep.environment_id}
        made = sweep.ask("owner", "POST", "keys", body)
        assert made.status_code == 201, made.text
        sweep.tokens[who] = sweep.markers.known(f"secret of {who}", made.json()["secret"])
    return people


HIDDEN_CELLS = ("internal", "salary", "facts", "labels")


def plant_rows(sweep: Sweep, people: dict[str, str]) -> dict[str, str]:
    """Rows whose hidden cells hold markers, and rows that are hidden as a whole. Ids by name."""
    new = sweep.markers.new
    made = {}
    mine = sweep.ask("key", "POST", "rows/lists", {"name": "Home", "owner_id": people["alice"]}).json()["id"]
    for name, owner, title in (("task", "alice", "mine"), ("shared", "bob", "shared")):
        cells = {
            "internal": new(f"internal of {name}"),
            "salary": new(f"salary of {name}", lambda word: str(int(word, 16)) + ".5"),
            "facts": {"deep": [{"er": new(f"facts of {name}")}]},
            "labels": ["x", new(f"labels of {name}")],
        }
        planted = tuple(f"{cell} of {name}" for cell in HIDDEN_CELLS)
        note = () if name == "task" else ("note of shared",)
        body = {"title": title, "owner_id": people[owner], "list_id": mine, **cells}
        if note:
            body["note"] = new("note of shared")
        answer = sweep.ask("operator", "POST", "rows/tasks", body, shows=(*planted, *note))
        assert answer.status_code == 201, answer.text
        made[name] = answer.json()["id"]
    foreign = {"title": new("title of foreign"), "owner_id": people["bob"], "internal": new("internal of foreign")}
    answer = sweep.ask("operator", "POST", "rows/tasks", foreign, shows=("title of foreign", "internal of foreign"))
    made["foreign"] = answer.json()["id"]
    # What the rule of update refuses on the strength of a hidden cell.
    locked = {"title": "locked", "owner_id": people["alice"], "internal": "locked"}
    made["locked"] = sweep.ask("operator", "POST", "rows/tasks", locked).json()["id"]
    vault = {"body": new("body of vault"), "task_id": made["task"]}
    made["vault"] = sweep.ask("operator", "POST", "rows/vault", vault, shows=("body of vault",)).json()["id"]
    return made


def questions(sweep: Sweep, rows: dict[str, str]) -> Iterator[tuple[str, str, Any, dict[str, str]]]:
    """Method, path, body and headers of everything that can be asked about rows, well and badly. The markers themselves
    are asked for, too, where the client may have guessed one: as operands, which no answer repeats."""
    values = sweep.markers.values
    guesses = [
        {"internal": values["internal of task"]},
        {"internal": {"$startsWith": "mk"}},
        {"salary": values["salary of task"]},
        {"facts": {"$has": "deep"}},
        {"labels": {"$hasAny": [values["labels of task"]]}},
        {"note": {"$startsWith": "mk"}},
        {"$search": values["internal of task"].removeprefix("mk-").removesuffix("-mk")},
        {"$or": [{"title": "mine"}, {"internal": values["internal of task"]}]},
        {"$not": {"internal": {"$null": True}}},
        {"list.tasks": {"$some": {"internal": {"$null": False}}}},
        {"vault": {"$some": {"body": {"$contains": "mk"}}}},
        {"title": 5},
        {"title": {"$in": []}},
        {},
    ]
    for where in guesses:
        yield "GET", f"rows/tasks?where={quote(json.dumps(where))}&with=list&count=exact", None, {}
        yield "POST", "rows/tasks/query", {"where": where, "order": "title.desc", "limit": 1}, {}
        yield "POST", "rows/tasks/aggregate", {"where": where, "group": ["title", "note"], "max": ["title"]}, {}
    for name in ("internal", "salary", "note", "list", "vault", "facts"):
        yield "POST", "rows/tasks/aggregate", {"group": [name], "order": f"{name}.desc"}, {}
        for kind in ("count_distinct", "sum", "avg", "min", "max"):
            yield "POST", "rows/tasks/aggregate", {kind: [name]}, {}
    for order in ("internal", "salary.desc", "note,title", "list.name", "facts", "vault.body"):
        yield "GET", f"rows/tasks?order={order}&limit=1", None, {}
    for withs in ("list", "list.tasks", "vault", "list.tasks.vault", "internal", "owner"):
        yield "GET", f"rows/tasks?with={withs}", None, {}
        yield "GET", f"rows/tasks/{rows['task']}?with={withs}", None, {}
    yield "GET", "rows/lists?with=tasks", None, {}
    for columns in ("*", "title,internal", "*,-internal", "*,-title", "list.*", "vault.*,title", "list_id"):
        yield "GET", f"rows/tasks?with=list&columns={columns}", None, {}
        yield "GET", f"rows/tasks/{rows['task']}?columns={columns}", None, {}
    for name in ("task", "shared", "foreign", "locked"):
        path = f"rows/tasks/{rows[name]}"
        yield "GET", path, None, {}
        yield "GET", path, None, {"If-None-Match": '"x"'}
        yield "POST", "rows/tasks/explain", {"id": rows[name]}, {}
        for cell in HIDDEN_CELLS:
            yield "PATCH", path, {cell: None}, {}
        for body in ({"title": "shared"}, {"note": "x", "title": 5}, {"note": "y"}, {"id": "x"}, [], {"note": None}):
            yield "PATCH", path, body, {"Idempotency-Key": secrets.token_hex(8)}
        yield "PATCH", path, {"note": "z"}, {"If-Match": '"stale"'}
        if name in ("task", "locked"):
            yield "PATCH", path, {"title": "mine"}, {}
    yield "GET", "rows/vault", None, {}
    yield "GET", f"rows/vault/{rows['vault']}", None, {}
    yield "POST", "rows/vault", {"body": "x"}, {}
    yield "DELETE", f"rows/vault/{rows['vault']}", None, {}
    yield "POST", "rows/tasks", {"title": "mine", "internal": values["internal of shared"]}, {}
    yield "POST", "rows/tasks", [{"title": "a"}, {"title": "b", "list_id": rows["foreign"]}, {"title": 5}], {}
    yield "POST", "rows/tasks", {"title": "new"}, {"Idempotency-Key": "again"}
    yield "POST", "rows/tasks", {"title": "new"}, {"Idempotency-Key": "again"}
    yield "POST", "rows/tasks", {"title": "other"}, {"Idempotency-Key": "again"}


FUNCTION = """
export default async (input, ctx) => {
  const said = [];
  const tell = async (what) => { try { said.push(await what()); } catch (error) { said.push(`${error} ${error.code}`); } };
  for (const where of [{}, {internal: {"$null": false}}, {"$search": "mk"}])
    await tell(() => ctx.rows.list("tasks", {where, with: "list"}));
  await tell(() => ctx.rows.list("vault"));
  for (const id of input.ids) {
    await tell(() => ctx.rows.get("tasks", id));
    await tell(() => ctx.rows.update("tasks", id, {internal: "x"}));
    await tell(() => ctx.rows.update("tasks", id, {note: "from a function"}));
  }
  await tell(() => ctx.rows.insert("tasks", {title: "by a function"}));
  console.log(JSON.stringify(said), JSON.stringify(ctx.caller), Object.keys(ctx.secrets));
  if (ctx.secrets.API.length < 10) throw new Error("no secret was given");
  if (input.throws) throw new Error(JSON.stringify(said));
  return said;
};
"""


def test_no_marker_is_in_any_response(served: Up, sweep: Sweep, tmp_path: Path) -> None:
    markers, new = sweep.markers, sweep.markers.new
    log_begins = len(served.lines)
    people = plant_people(sweep)
    applied = sweep.ask("owner", "PUT", "schema", {"document": document()})
    assert applied.status_code == 200, applied.text
    of_users = ("title of foreign", "note of shared")
    """Hidden from alice by her rules, and no secret to a key."""
    with Receiver() as receiver:
        hook = {"url": receiver.url(f"/{new('path of webhook')}"), "events": ["*"]}
        made = sweep.ask("owner", "POST", "webhooks", hook, shows=("path of webhook",))
        assert made.status_code == 201, made.text
        webhook = made.json()["id"]
        markers.known("secret of webhook", made.json()["secret"])
        source = {"source": FUNCTION, "secrets": {"API": new("secret of function")}}
        assert sweep.ask("owner", "PUT", "functions/curious", source).status_code == 201
        rows = plant_rows(sweep, people)
        sweep.ask("bob", "GET", f"rows/tasks/{rows['foreign']}", shows=("title of foreign",))

        for who, may_show in (("alice", ()), ("key", of_users)):
            for method, path, body, headers in questions(sweep, rows):
                sweep.ask(who, method, path, body, headers, may_show=may_show)
            for throws in (False, True):
                for mode in ({}, {"async": True}):
                    asked = {"input": {"ids": list(rows.values()), "throws": throws}, **mode}
                    run = sweep.ask(who, "POST", "functions/curious/invoke", asked, may_show=may_show)
                    assert run.status_code in (200, 202), run.text
        for seen_as in (*people.values(), "server", "member"):
            for row in ("task", "locked"):
                told = sweep.ask("key", "POST", "rows/tasks/explain", {"id": rows[row], "as": seen_as})
                assert told.status_code == 200, told.text
        assert sweep.ask("alice", "DELETE", f"rows/tasks/{rows['locked']}").status_code == 204
        ask_badly_for_tokens(sweep)

        wait_for("the runs have ended", lambda: not listed(sweep, "functions/curious/runs?status=running"), 60, 0.2)
        deliveries = f"webhooks/{webhook}/deliveries?limit=100"
        wait_for("it was sent", lambda: b"by a function" in b"".join(receiver.requests), 60)
        wait_for(
            "all is sent", lambda: not [1 for one in listed(sweep, deliveries) if one["status"] == "pending"], 60, 0.2
        )
        sent = b"\n".join(receiver.requests)
        assert markers.found(sent, allowed=("path of webhook", *of_users)) == set()
        assert sent.count(b'"tasks.insert"') >= 4
        assert b'"tasks.delete"' in sent
        assert markers.values["title of foreign"].encode() in sent, "the receiver got what a key may see"

    read_what_was_kept(sweep, webhook, of_users)
    hidden = tuple(f"{cell} of task" for cell in HIDDEN_CELLS)
    sweep.ask("operator", "GET", f"rows/tasks/{rows['task']}", shows=hidden)  # they are still there to be found
    look_into_the_console(served, sweep, webhook)
    look_into_logs(served, markers, log_begins)
    look_into_databases(served, markers, sweep.environment_id)
    look_into_valkey(served, markers)
    export(served, sweep, tmp_path)
    assert sweep.asked > 200
    assert {200, 201, 202, 204, 400, 401, 404, 412, 422} <= sweep.statuses


def listed(sweep: Sweep, path: str) -> list[dict[str, Any]]:
    """`data` of a list, as the owner, who may see of the queue what keys may see of rows."""
    answer = sweep.ask("owner", "GET", path, may_show=tuple(sweep.markers.values))
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


def ask_badly_for_tokens(sweep: Sweep) -> None:
    """Secrets where they do not belong: in bodies that cannot be read, in other fields, in URLs."""
    values = sweep.markers.values
    password, refresh = values["password of alice"], values["refresh token of alice"]
    for body in (
        {"grant_type": "password", "email": password, "password": password},
        {"grant_type": "password", "email": "alice@markers.example", "password": password + "x"},
        {"grant_type": password, "email": "alice@markers.example", "password": password},
        {"grant_type": "password", "email": {"a": password}, "password": [password]},
        {"grant_type": "refresh_token", "refresh_token": refresh + "0"},
        {"grant_type": "authorization_code", "code": refresh},
    ):
        assert sweep.ask(None, "POST", "auth/token", body).status_code == 400
    for raw in (b'{"password": "' + password.encode(), password.encode(), b'["' + password.encode() + b'"]'):
        headers = {"Content-Type": "application/json", "X-Environment": sweep.environment_id}
        answer = sweep.client.post("/v1/auth/token", content=raw, headers=headers)
        assert answer.status_code == 400
        assert sweep.markers.found(answer.content) == set()
    for who in ("alice", "key"):
        token = sweep.tokens[who]
        for path in (f"rows/tasks?access_token={token}", f"rows/tasks?apikey={token}", f"rows/{token}", f"{token}"):
            # The name of a table that is not there, an unknown path: neither comes back, nor goes into a log.
            assert sweep.ask("alice", "GET", path).status_code in (404, 422), path
        sweep.tokens["broken"] = token[:-1] + ("A" if token[-1] != "A" else "B")
        assert sweep.ask("broken", "GET", "rows/tasks").status_code == 401


def read_what_was_kept(sweep: Sweep, webhook: str, of_users: tuple[str, ...]) -> None:
    """Everything that the API shows afterwards of what was said and done, as those who may see most of it."""
    for path in ("auth/me", "auth/sessions", "keys", "schema", "schema/versions", "limits", "functions",
                 "functions/curious", "functions/curious/versions"):  # fmt: skip
        assert sweep.ask("owner", "GET", path).status_code == 200, path
    sweep.ask("owner", "GET", "users", shows=("claim of alice", "claim of bob"))
    for who in ("owner", "key"):
        sweep.ask(who, "GET", "webhooks", shows=("path of webhook",))
        sweep.ask(who, "GET", f"webhooks/{webhook}", shows=("path of webhook",))
        sweep.ask(who, "GET", f"webhooks/{webhook}/deliveries?limit=100", may_show=("path of webhook", *of_users))
    for who, may_show in (("alice", ()), ("key", of_users)):
        runs = sweep.ask(who, "GET", "functions/curious/runs?limit=100", may_show=may_show).json()["data"]
        assert len(runs) >= 4
        for run in runs:
            sweep.ask(who, "GET", f"functions/curious/runs/{run['id']}", may_show=may_show)
    for path in ("/metrics", "/readyz", "/v1/openapi.json", "/.well-known/jwks.json", "/docs"):
        answer = sweep.client.get(path)
        assert answer.status_code == 200, path
        assert sweep.markers.found(answer.content) == set(), path


_SHOWN_TO_OPERATORS = ("path of webhook", "claim of alice", "claim of bob", "title of foreign", "note of shared")


def look_into_the_console(served: Up, sweep: Sweep, webhook: str) -> None:
    """Every page that the console's operator reaches by links, lists first, as far as the limit."""
    with httpx.Client(base_url=served.base_url, timeout=30, follow_redirects=True) as browser:
        browser.get("/admin/login/")
        form = {"username": served.facts["admin"]["email"], "password": served.facts["admin"]["password"]}
        csrf = {"csrfmiddlewaretoken": browser.cookies["csrftoken"], "next": "/admin/"}
        inside = browser.post("/admin/login/", data={**form, **csrf}, headers={"Referer": served.base_url})
        assert inside.status_code == 200, inside.status_code
        assert "/admin/logout/" in inside.text
        waiting, seen = ["/admin/", f"/admin/timeline/?q={webhook}"], set()
        while waiting and len(seen) < 90:
            path = waiting.pop(0)
            if path in seen:
                continue
            seen.add(path)
            page = browser.get(path)
            found = sweep.markers.found(page.content, allowed=_SHOWN_TO_OPERATORS)
            assert found == set(), (path, found)
            links = {
                link.replace("&amp;", "&").partition("#")[0] for link in re.findall(r'href="(/admin/[^"]*)"', page.text)
            }
            away = ("logout", "/delete/", "jsi18n", "password", "/add/")
            new = sorted(link for link in links - seen if not any(word in link for word in away) and "?" not in link)
            waiting += sorted(new, key=lambda link: "/change/" in link)
        assert len(seen) > 10, seen


def look_into_logs(served: Up, markers: Markers, begins: int) -> None:
    """What all processes printed, and every file of the data dir that is no database and not made to hold secrets."""
    printed = "\n".join(served.lines[begins:])
    assert " /v1/rows/" in printed, "the access log is part of it"
    assert markers.found(printed.encode()) == set()
    layout = Layout(served.data_dir)
    for file in served.data_dir.rglob("*"):
        if file.is_file() and layout.postgres not in file.parents:
            assert markers.found(file.read_bytes()) == set(), file


def look_into_databases(served: Up, markers: Markers, environment_id: str) -> None:
    """Every row of every table. Cells stand where they live: in the environment's tables and the outbox of its region.
    Secrets stand nowhere as they are, but for what is shown to those who wrote it."""
    layout = Layout(served.data_dir)
    secret = tuple(name for name in markers.values if name.split()[0] in ("password", "access", "refresh", "secret"))
    hidden = tuple(name for name in markers.values if name.split()[0] in HIDDEN_CELLS)
    assert len(secret) == 10
    at_home = 0
    for database in ("control", *map(region_database, REGIONS)):
        with embedded_postgres.connect(layout, database) as connection:
            tables = connection.execute(
                "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE c.relkind = 'r' AND (n.nspname IN ('public', 'platform') OR n.nspname = %s)",
                [environment_id],
            ).fetchall()
            for schema, table in tables:
                query = sql.SQL("SELECT t::text FROM {} t").format(sql.Identifier(str(schema), str(table)))
                text = "\n".join(str(row) for (row,) in connection.execute(query)).encode()
                found = markers.found(text)
                assert not found & {*secret}, (database, schema, table, found)
                is_home = schema == environment_id or table == "rows_outboxevent"
                assert is_home or not found & {*hidden}, (database, schema, table, found)
                at_home += len(found & {*hidden}) if schema == environment_id else 0
    assert at_home >= 8


def look_into_valkey(served: Up, markers: Markers) -> None:
    client = embedded_valkey.client(Layout(served.data_dir))
    keys = list(client.scan_iter(count=1000))
    assert keys
    for key in keys:
        # Values as they are stored: strings, lists and sets of whatever the cache and the broker put there.
        kind = client.type(key)
        held: Any = {
            b"string": lambda: [client.get(key)],  # noqa: B023
            b"list": lambda: client.lrange(key, 0, -1),  # noqa: B023
            b"set": lambda: client.smembers(key),  # noqa: B023
            b"hash": lambda: [part for pair in client.hgetall(key).items() for part in pair],  # noqa: B023
            b"zset": lambda: client.zrange(key, 0, -1),  # noqa: B023
        }[kind if isinstance(kind, bytes) else kind.encode()]()
        text = b"\n".join(one if isinstance(one, bytes) else str(one).encode() for one in [key, *held])
        # A cached record of a caller holds the claims that rules are asked with.
        assert markers.found(text, allowed=("claim of alice", "claim of bob")) == set(), key


def export(served: Up, sweep: Sweep, tmp_path: Path) -> None:
    """An operator's export has the columns it was asked for, and its report nothing."""
    command = [sys.executable, str(ROOT / "manage.py"), "export_rows", sweep.environment_id, "tasks"]
    environment = {"DATA_DIR": str(served.data_dir), "PATH": "/usr/bin:/bin"}
    for name, columns in (("some.ndjson.gz", ["id", "title"]), ("all.csv", [])):
        file = tmp_path / name
        more = ["--columns", *columns] if columns else []
        done = subprocess.run([*command, str(file), *more], env=environment, capture_output=True, check=True)
        assert sweep.markers.found(done.stdout + done.stderr) == set()
        found = sweep.markers.found(file.read_bytes())
        assert found == set() if columns else {f"{cell} of task" for cell in HIDDEN_CELLS} <= found
