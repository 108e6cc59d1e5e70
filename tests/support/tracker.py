"""The schema that the tests of `rows` speak about: lists, tasks and comments of a small task tracker, under rules.

`board` is everything at once: one column of each type, a table that refers to itself, a table without rules.
"""

from typing import Any

from rows.schema.model import Schema
from rows.schema.parser import parse

OWN = {"owner_id": "$user.id"}

DOCUMENT: dict[str, Any] = {
    "tables": {
        "lists": {
            "id_prefix": "lst_",
            "columns": {"name": {"type": "text", "max_length": 100}, "owner": {"type": "user"}},
            "rules": {"user": {"read": {"where": OWN}}},
        },
        "tasks": {
            "id_prefix": "tsk_",
            "columns": {
                "title": {"type": "text", "max_length": 200},
                "notes": {"type": "text", "null": True},
                "done": {"type": "boolean", "default": False},
                "priority": {"type": "integer", "null": True},
                "price": {"type": "decimal", "precision": 10, "scale": 2, "null": True},
                "weight": {"type": "float", "null": True},
                "due_on": {"type": "date", "null": True},
                "seen_at": {"type": "timestamp", "null": True},
                "token": {"type": "uuid", "null": True},
                "meta": {"type": "json", "null": True},
                "tags": {"type": "text[]", "null": True},
                "status": {"type": "enum", "values": ["open", "done"], "default": "open"},
                "internal": {"type": "text", "null": True},
                "list": {"type": "reference", "to": "lists", "on_delete": "cascade"},
                "parent": {"type": "reference", "to": "tasks", "on_delete": "cascade", "null": True},
                "owner": {"type": "user"},
            },
            "indexes": [["owner", "-created_at"]],
            "rules": {
                "user": {
                    "read": {"where": OWN, "columns": ["*", "-internal"]},
                    "insert": {
                        "set": OWN,
                        "check": {"list.owner_id": "$user.id"},
                        "columns": ["title", "list_id"],
                    },
                    "update": {"where": OWN, "columns": ["title", "done"]},
                    "delete": {"where": OWN},
                }
            },
        },
        "comments": {
            "columns": {
                "body": {"type": "text"},
                "stars": {"type": "integer", "null": True},
                "task": {"type": "reference", "to": "tasks", "on_delete": "cascade"},
            },
            "rules": {"user": {"read": {"where": {"task.owner_id": "$user.id"}}}},
        },
        "secrets": {
            "columns": {
                "body": {"type": "text"},
                "task": {"type": "reference", "to": "tasks", "on_delete": "cascade"},
            },
        },
    }
}


def tracker(**tables: Any) -> Schema:
    """The schema of DOCUMENT, with these tables replaced or added."""
    return parse({"tables": {**DOCUMENT["tables"], **tables}})
