"""The part `users` of a schema document, such as `{"users": {"user": ["id", "name"], "anonymous": []}}`: the fields of
embedded users by role. Others see none. docs/reference/schema.md."""

from collections.abc import Mapping
from typing import Final

USER_FIELDS: Final = ("id", "email", "name", "role", "created_at")
"""In the order of responses. Claims are input for rules only."""
UserFields = Mapping[str, tuple[str, ...]]


def visible_to(users: UserFields, role: str, base: str) -> tuple[str, ...]:
    return users[role] if role in users else users.get(base, ())
