"""The schema of the tests of aggregates."""

from typing import Any

DEALS: dict[str, Any] = {
    "columns": {
        "name": {"type": "text", "max_length": 100, "null": True},
        "stage": {"type": "enum", "values": ["open", "won", "lost"], "null": True},
        "value": {"type": "decimal", "precision": 12, "scale": 2, "null": True},
        "units": {"type": "integer", "null": True},
        "weight": {"type": "float", "null": True},
        "margin": {"type": "integer", "null": True},
        "secret": {"type": "integer", "null": True},
        "closed_at": {"type": "timestamp", "null": True},
        "due_on": {"type": "date", "null": True},
        "meta": {"type": "json", "null": True},
        "tags": {"type": "text[]", "null": True},
        "token": {"type": "uuid", "null": True},
        "is_new": {"type": "boolean", "null": True},
        "owner": {"type": "user"},
        "parent": {"type": "reference", "to": "deals", "on_delete": "cascade", "null": True},
    },
    "rules": {
        "user": {
            "read": [
                {"where": {"stage": {"$ne": "lost"}}, "columns": ["*", "-margin", "-secret", "-parent"]},
                {"where": {"owner_id": "$user.id"}, "columns": ["*", "-secret"]},
            ]
        },
        "server": {"read": {}},
    },
}


NOTES: dict[str, Any] = {
    "columns": {"body": {"type": "text"}, "deal": {"type": "reference", "to": "deals", "on_delete": "cascade"}},
    "rules": {"user": {"read": {}}},
}


DOCUMENT: dict[str, Any] = {"tables": {"deals": DEALS, "notes": NOTES}}
