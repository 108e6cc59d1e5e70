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
