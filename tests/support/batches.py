"""Batches of rows and their operations."""

from typing import Any

from tests.support.client import Answer


def batch(app: Any, *operations: Any, who: str = "alice", headers: Any = None, **more: Any) -> Answer:
    return app.post(who, "/batch", {"operations": list(operations), **more}, headers=headers)


def insert(table: str, called: str | None = None, /, **values: Any) -> dict[str, Any]:
    return {"op": "insert", "table": table, "values": values} | ({} if called is None else {"name": called})


def ref(cell: str) -> dict[str, str]:
    return {"$ref": cell}


def failed(answer: Answer, number: int, status: int, error: str, **fields: str) -> None:
    assert (answer.status, answer.error, answer.json["error"]["operation"]) == (status, error, number), answer.json
    assert answer.fields == fields
