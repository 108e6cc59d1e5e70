"""A schema document with relations, rules and webhooks."""

from typing import Any

TRACKER: dict[str, Any] = {
    "tables": {
        "lists": {
            "id_prefix": "lst_",
            "columns": {"name": {"type": "text", "max_length": 100}, "owner": {"type": "user"}},
            "rules": {"user": {"read": {"where": {"owner_id": "$user.id"}}}},
        },
        "tasks": {
            "id_prefix": "tsk_",
            "columns": {
                "title": {"type": "text", "max_length": 200},
                "done": {"type": "boolean", "default": False},
                "due_on": {"type": "date", "null": True},
                "internal": {"type": "text", "null": True},
                "list": {"type": "reference", "to": "lists", "on_delete": "cascade"},
                "owner": {"type": "user"},
            },
            "unique": [["list", "title"]],
            "indexes": [["owner", "-created_at"]],
            "rules": {
                "user": {
                    "read": {"where": {"owner_id": "$user.id"}, "columns": ["*", "-internal"]},
                    "insert": {
                        "set": {"owner_id": "$user.id"},
                        "check": {"list.owner_id": "$user.id"},
                        "columns": ["title", "list_id"],
                    },
                    "delete": {"where": {"owner_id": "$user.id"}},
                }
            },
        },
    }
}


def with_grants(grants: int, conditions: int, columns: int = 10) -> dict[str, Any]:
    """Tables a, b and c, with read rules of `a` that show one more column each."""
    read = [
        {
            "columns": [f"c{number % columns}"],
            "where": {"$or": [{"b.c.name": f"{number}.{n}"} for n in range(conditions)]},
        }
        for number in range(grants)
    ]
    own = {f"c{number}": {"type": "text"} for number in range(columns)}
    to = lambda table: {"type": "reference", "to": table, "null": True}  # noqa: E731
    return {
        "tables": {
            "a": {"columns": {**own, "b": to("b")}, "rules": {"user": {"read": read}}},
            "b": {"columns": {"name": {"type": "text"}, "c": to("c")}},
            "c": {"columns": {"name": {"type": "text"}}},
        }
    }
