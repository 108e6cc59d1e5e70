"""The part `users` of a schema document, such as `{"users": {"user": ["id", "name"], "anonymous": []}}`: the fields of
embedded users by role. Others see none. docs/reference/schema.md."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from platform_site.http.errors import FieldError
from rows.schema import identifiers

USER_FIELDS: Final = ("id", "email", "name", "role", "created_at")
"""In the order of responses. Claims are input for rules only."""
UserFields = Mapping[str, tuple[str, ...]]
MAX_ROLES: Final = 32


def parse_user_fields(raw: object, errors: list[FieldError]) -> UserFields:
    if not isinstance(raw, dict):
        errors.append(FieldError("users", "invalid", 'must be an object such as {"user": ["id", "name"]}'))
        return {}
    if len(raw) > MAX_ROLES:
        errors.append(FieldError("users", "too_many", f"at most {MAX_ROLES} roles, not {len(raw)}"))
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for role, fields in raw.items():
        if identifiers.PATTERN.fullmatch(role):
            found[role] = _fields(f"users.{role}", fields, errors)
        else:
            path = f"users.{json.dumps(role)[:64]}"
            message = "a role is 1-48 of a-z, 0-9 and _, beginning with a letter"
            errors.append(FieldError(path, "invalid", message))
    return MappingProxyType(found)


def _fields(path: str, raw: object, errors: list[FieldError]) -> tuple[str, ...]:
    if not isinstance(raw, list):
        errors.append(FieldError(path, "invalid", "must be a list of fields; [] shows none"))
        return ()
    if len(raw) > len(USER_FIELDS):
        message = f"must have at most {len(USER_FIELDS)} entries, not {len(raw)}"
        errors.append(FieldError(path, "too_many", message))
        return ()
    for index, name in enumerate(raw):
        if name not in USER_FIELDS:
            suggestion = identifiers.did_you_mean(name, USER_FIELDS)
            message = f"must be one of {', '.join(USER_FIELDS)}{suggestion}"
            errors.append(FieldError(f"{path}.{index}", "unknown", message))
        elif name in raw[:index]:
            errors.append(FieldError(f"{path}.{index}", "taken", "is listed twice"))
    return tuple(name for name in USER_FIELDS if name in raw)


def visible_to(users: UserFields, role: str, base: str) -> tuple[str, ...]:
    return users[role] if role in users else users.get(base, ())
