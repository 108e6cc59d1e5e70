"""The schema of a public site: anonymous callers read published posts."""

from typing import Any

from tests.rows.conftest import Tracker, make_tracker  # noqa: F401 - a fixture

SITE: dict[str, Any] = {
    "tables": {
        "posts": {
            "columns": {
                "title": {"type": "text"},
                "draft": {"type": "boolean", "default": False},
                "earned": {"type": "integer", "null": True},
                "author": {"type": "reference", "to": "authors", "on_delete": "cascade", "null": True},
                "owner": {"type": "user", "null": True},
            },
            "rules": {
                "anonymous": {"read": {"where": {"draft": False}, "columns": ["title", "author_id"]}},
                "user": {"read": {}, "insert": {"set": {"owner_id": "$user.id"}, "columns": ["title", "draft"]}},
            },
        },
        "authors": {
            "columns": {"pen_name": {"type": "text"}, "real_name": {"type": "text"}},
            "rules": {"anonymous": {"read": {"columns": ["pen_name"]}}},
        },
        "letters": {
            "columns": {"text": {"type": "text"}, "from_page": {"type": "text", "null": True}},
            "rules": {"anonymous": {"insert": {"set": {"from_page": "$key.id"}, "columns": ["text"]}}},
        },
        "private": {"columns": {"text": {"type": "text"}}, "rules": {"user": {"read": {}, "insert": {}}}},
        "no_rules": {"columns": {"text": {"type": "text"}}},
    }
}
