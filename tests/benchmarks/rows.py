"""What rows cost: `python -m tests.benchmarks.rows [SECONDS] [WORKERS]`. By hand, on a quiet machine.

100,000 tasks of 1,000 owners in 1,000 lists, under rules, asked for by 16 clients with tokens of 64 owners: sessions,
limits and rules are all on. Each result has the lower bounds of the same run on the same machine: a bare Django view
on the same server, and `pgbench -M prepared` with the very statement that answers. Results: docs/explanation/performance.md.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from platform_site.embedded import postgres as embedded_postgres
from tests.benchmarks.measured_service import CLIENTS, HEAD, Figures, Stage, line, seconds_and_workers, stage

OWNERS, LISTS, TASKS, ASKING = 1_000, 1_000, 100_000, 64
EACH = 50
"""As many tasks of each who asks are asked for."""

OWN = {"owner_id": "$user.id"}
DOCUMENT: dict[str, Any] = {
    "users": {"user": ["id", "name"]},
    "tables": {
        "lists": {
            "id_prefix": "lst_",
            "columns": {"name": {"type": "text", "max_length": 100}, "owner": {"type": "user"}},
            "rules": {"user": {"read": {"where": OWN}, "insert": {"set": OWN, "columns": ["name"]}}},
        },
        "tasks": {
            "id_prefix": "tsk_",
            "columns": {
                "title": {"type": "text", "max_length": 200},
                "notes": {"type": "text", "null": True},
                "done": {"type": "boolean", "default": False},
                "priority": {"type": "integer", "null": True},
                "due_on": {"type": "date", "null": True},
                "tags": {"type": "text[]", "null": True},
                "status": {"type": "enum", "values": ["open", "started", "done"], "default": "open"},
                "internal": {"type": "text", "null": True},
                "list": {"type": "reference", "to": "lists", "on_delete": "cascade"},
                "owner": {"type": "user"},
            },
            "indexes": [["owner", "-created_at"], ["-created_at"]],
            "rules": {
                "user": {
                    "read": {"where": OWN, "columns": ["*", "-internal"]},
                    "insert": {"set": OWN, "check": {"list.owner_id": "$user.id"}, "columns": ["title", "list_id"]},
                    "update": {"where": OWN, "check": OWN, "columns": ["title", "done", "priority"]},
                    "delete": {"where": OWN},
                }
            },
        },
    },
}
BATCH = {
    "operations": [
        operation
        for number in range(5)
        for operation in (
            {"op": "insert", "table": "lists", "name": f"list{number}", "values": {"name": "New"}},
            {"op": "insert", "table": "tasks", "values": {"title": "New", "list_id": {"$ref": f"list{number}.id"}}},
        )
    ]
}
"""Ten inserts into two tables."""
TOTALS = {"group": ["status"], "count": True, "sum": ["priority"]}
WHERE = quote(json.dumps({"done": False}))


# ── The place ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Setting:
    environment: Any
    tokens: list[str]
    owners: list[str]
    """The owners behind the tokens."""
    key: str
    tasks: list[str]
    """Some of the first owner's."""


def build() -> Setting:
    """A project with the schema, its rows, and the callers."""
    from django.db import connections

    from accounts import audit
    from accounts.models import User
    from accounts.users import service as services
    from platform_site.identity import ids
    from platform_site.postgres.row_access import row_access
    from projects.directory.environments import environment_ref
    from rows.migrate import service as schema_service
    from tests.projects.conftest import environment_of, key_for, make_project, token_of

    owner = services.create_user(pool_id=None, email="bench@example.com", password=None, name="B", actor=audit.SYSTEM)
    environment = environment_of(make_project(owner, plan="team"))
    environment = environment_ref(environment.pk)
    assert environment is not None
    schema_service.change(environment, DOCUMENT, actor=audit.SYSTEM)
    users = [ids.new("usr") for _ in range(OWNERS)]
    User.objects.bulk_create(
        [User(id=user, email=f"{user}@example.com", environment_id=environment.pool_id) for user in users]
    )
    schema = f'"{environment.environment_id}"'
    with row_access(), connections[environment.cluster].cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute(
            f"INSERT INTO {schema}.lists (id, name, owner_id) SELECT 'lst_' || n, 'List ' || n, (%s::text[])[n]"
            " FROM generate_series(1, %s) n",
            [users, LISTS],
        )
        cursor.execute(
            f"INSERT INTO {schema}.tasks (id, title, notes, done, priority, due_on, tags, list_id, owner_id, created_at)"
            " SELECT 'tsk_' || lpad(n::text, 8, '0'), 'Task number ' || n, repeat('note ', n %% 20), n %% 3 = 0, n %% 5,"
            " date '2026-01-01' + n %% 300, ARRAY['a', 'b'], 'lst_' || 1 + n %% %s, (%s::text[])[1 + n %% %s],"
            " timestamptz '2026-01-01' + n * interval '1 minute' FROM generate_series(1, %s) n",
            [LISTS, users, OWNERS, TASKS],
        )
        cursor.execute(f"VACUUM ANALYZE {schema}.tasks")
        cursor.execute(f"VACUUM ANALYZE {schema}.lists")
    asking = list(User.objects.filter(pk__in=users[:ASKING]).order_by("pk"))
    return Setting(
        environment,
        [token_of(user, environment.environment_id) for user in asking],
        [user.pk for user in asking],
        key_for(environment.environment_id, "rows:read", "rows:write", "rows:bypass_rules"),
        [f"tsk_{(users.index(asking[0].pk) or OWNERS) + OWNERS * number:08}" for number in range(EACH)],
    )


def request(
    port: int, method: str, path: str, token: str | None, body: Any = None, headers: dict[str, str] | None = None
) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Accept: */*"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, "", ""]).encode() + content


def questions(setting: Setting, port: int) -> dict[str, tuple[list[bytes], Any]]:
    """What is asked, and the shape of the statement that answers it (None where there is none)."""
    from rows import services
    from rows.query import params
    from rows.query import where as query_where
    from rows.query.schema_cache import compiled_schema
    from rows.query.sql import select
    from rows.rules.principal import Principal
    from rows.write.statements import shapes, writes

    known = compiled_schema(setting.environment)
    user, everyone = known.role_view("user"), known.role_view("all")
    rows: dict[str, list[str]] = {}
    for owner in setting.owners:
        listed = services.list_rows(
            setting.environment, Principal("user", user_id=owner), "tasks", services.ListQuery(limit=EACH)
        )
        rows[owner] = [row["id"] for row in json.loads(listed.body)["data"]]
    of_owners = [(token, owner, task) for number in range(EACH)
                 for token, owner in zip(setting.tokens, setting.owners, strict=True)
                 for task in [rows[owner][number]]]  # fmt: skip

    operator = Principal("key", bypass=True)
    cursor = None
    for _ in range(500):
        page = services.list_rows(
            setting.environment,
            operator,
            "tasks",
            services.ListQuery(order="created_at.desc", limit=100, cursor=cursor),
        )
        cursor = page.next_cursor

    def of_list(role_view: Any, where: str | None, order: str, withs: str | None, after: bool = False) -> Any:
        resolver = role_view.ruleset.resolver(role_view.role_key)
        keys = params.parse_order(order, "tasks", resolver)
        found = query_where.parse_where(where, "tasks", resolver)
        shape = select.ReadShape(
            "tasks",
            found.shape,
            keys,
            params.parse_with(withs, "tasks", resolver),
            (False,) * len(keys) if after else None,
        )
        return select.read(role_view, shape), found

    with_list = params.parse_with("list", "tasks", user.ruleset.resolver(user.role_key))
    latest = "order=created_at.desc"
    by_key = lambda path: [request(port, "GET", f"/v1/rows/tasks?{latest}{path}", setting.key)]  # noqa: E731
    each = lambda path: [request(port, "GET", f"/v1/rows/tasks{path}", token) for token in setting.tokens]  # noqa: E731
    return {
        "bare view": ([request(port, "GET", "/v1/bench/bare", None)], None),
        "nothing, as a key": ([request(port, "GET", "/v1/bench/nothing-somewhere", setting.key)], None),
        "retrieve": (
            [request(port, "GET", f"/v1/rows/tasks/{task}", token) for token, _, task in of_owners],
            (select.read(user, select.ReadShape("tasks")), None),
        ),
        "retrieve with its list": (
            [request(port, "GET", f"/v1/rows/tasks/{task}?with=list", token) for token, _, task in of_owners],
            (select.read(user, select.ReadShape("tasks", withs=with_list)), None),
        ),
        "list 20 of one's own": (
            each(f"?where={WHERE}&{latest}"), of_list(user, '{"done": false}', "created_at.desc", None)
        ),
        "list 20 with their list": (
            each(f"?where={WHERE}&{latest}&with=list"), of_list(user, '{"done": false}', "created_at.desc", "list")
        ),
        "list 20 with their owner": (
            each(f"?where={WHERE}&{latest}&with=owner"), of_list(user, '{"done": false}', "created_at.desc", "owner")
        ),
        "count and sum of one's own by status": (
            [request(port, "POST", "/v1/rows/tasks/aggregate", token, TOTALS) for token in setting.tokens], None
        ),
        "page 1 of 100,000": (by_key(""), of_list(everyone, None, "created_at.desc", None)),
        "page at depth 50,000": (by_key(f"&cursor={cursor}"), of_list(everyone, None, "created_at.desc", None, after=True)),
        "update": (
            [request(port, "PATCH", f"/v1/rows/tasks/{task}", token, {"priority": number % 7})
             for number, (token, _, task) in enumerate(of_owners)],
            (writes.update(user, shapes.UpdateShape("tasks", ("priority",))), None),
        ),
        "insert": (
            [request(port, "POST", "/v1/rows/tasks", token, {"title": "New", "list_id": f"lst_{1 + number}"})
             for number, token in enumerate(lists_of(setting))],
            (writes.insert(user, shapes.InsertShape("tasks")), None),
        ),
        "batch of 10 inserts": ([request(port, "POST", "/v1/batch", token, BATCH) for token in setting.tokens], None),
    }  # fmt: skip


def lists_of(setting: Setting) -> list[str]:
    """For each of the first lists the token of its owner (the n-th list is the n-th owner's)."""
    from django.db import connections

    from platform_site.postgres.row_access import row_access

    with row_access(), connections[setting.environment.cluster].cursor() as cursor:
        lists = f'"{setting.environment.environment_id}".lists'
        cursor.execute(f"SELECT owner_id FROM {lists} ORDER BY substr(id, 5)::int LIMIT %s", [ASKING])
        by_owner = dict(zip(setting.owners, setting.tokens, strict=True))
        return [by_owner[owner] for (owner,) in cursor.fetchall()]


# ── The lower bound ─────────────────────────────────────────────────────────────────────────────────────────────────


def pgbench(setting: Setting, statement: Any, found: Any, seconds: float) -> float | None:
    """Transactions a second of `pgbench -M prepared` with the same statement, for one owner's values: of one of her
    tasks at random, since sixteen who update the same one would wait for one another."""
    import re

    from django.db import connections

    from rows.query.schema_cache import compiled_schema
    from rows.query.sql.statement import After, Cell
    from rows.rules.principal import Principal

    binary = embedded_postgres.binaries() / "pgbench"
    if not binary.exists():
        return None
    known: dict[Any, bytes | None] = {
        "environment": setting.environment.environment_id.encode(),
        "version": str(compiled_schema(setting.environment).version).encode(),
        "limit": b"21",
        "id": setting.tasks[0].encode(),
        After(0): b"2026-02-01 00:00:00+00",
        After(1): b"tsk_00044640",
        Cell("priority"): b"3",
    }
    if any(key not in known for key in statement.keys if isinstance(key, Cell)):
        return None
    principal = Principal("user", user_id=setting.owners[0])
    values = {f"p{number}": (value or b"").decode() for number, value in enumerate(
        statement.bind(known, found.wire if found else (), principal), 1
    )}  # fmt: skip
    text = statement.sql.decode().replace("'YYYY", "E'YYYY").replace("HH24:MI:SS", r"HH24\072MI\072SS")  # no variables
    text = re.sub(r"\$(\d+)", r":p\1", text) + ";\n"
    by_id = next((name for name, value in values.items() if value == setting.tasks[0]), None)
    facts = connections[setting.environment.cluster].get_connection_params()
    with tempfile.TemporaryDirectory() as directory:
        options = [f"-D{name}={value}" for name, value in values.items()]
        for task in setting.tasks if by_id else setting.tasks[:1]:
            options += ["-D", f"{task}={task}", "-f", f"{directory}/{task}.sql"]
            Path(directory, f"{task}.sql").write_text(re.sub(rf":{by_id}\b", f":{task}", text))
        done = subprocess.run(
            [str(binary), "-n", "-M", "prepared", "-c", str(CLIENTS), "-j", "2", "-T", str(max(1, round(seconds))),
             *options, "-h", facts["host"], "-U", facts["user"], facts["dbname"]],
            env=os.environ | {"PGPASSWORD": facts.get("password", ""), "PGOPTIONS": facts["options"]},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    spoken = re.search(r"tps = ([\d.]+)", done.stdout)
    if spoken is None:
        print(done.stderr[-500:])
        return None
    return float(spoken[1])


# ── The table ───────────────────────────────────────────────────────────────────────────────────────────────────────


def workloads(on: Stage, seconds: float) -> Iterator[Figures]:
    """The bare view first: its rate is what all shares are of."""
    from django.db import connections

    asked = questions(on.setting, on.port)
    connections.close_all()
    for what, (requests, statement) in asked.items():
        made = on.measure(what, requests, seconds)
        if statement is not None:
            on.figures[-1] = made = replace(made, statement=pgbench(on.setting, *statement, seconds))
        yield made
    connections.close_all()


def main(seconds: float = 3.0, workers: int = 2) -> None:
    with stage(workers) as on:
        print(HEAD)
        for made in workloads(on, seconds):
            print(line(made, on.figures[0].per_second), flush=True)


if __name__ == "__main__":
    main(*seconds_and_workers(__doc__))
