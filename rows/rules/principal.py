from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from platform_site.identity.callers import Caller, CallerKind
from rows.rules.conditions import Variable
from rows.rules.operators import shape_operand
from rows.schema.values import ELEMENTS, InvalidValue, read, wire

if TYPE_CHECKING:
    from accounts.models import User

USER: Final = "user"
MEMBER: Final = "member"
SERVER: Final = "server"
ANONYMOUS: Final = "anonymous"
"""The role of callers with a publishable key. Users cannot have it."""

RoleKey = str
"""`all`, `server`, `member`, `viewer`, `anonymous`, `user`, or `user:<role>` if a table names that role."""

ALL: Final[RoleKey] = "all"
VIEWER: Final[RoleKey] = "viewer"


@dataclass(frozen=True, slots=True)
class Principal:
    """`user_id`, `email`, `role` and `claims` are an app user's, as stored; an account has an id and email; a key, also
    for `anonymous`, its `key_id`. `bypass`: the scope `rows:bypass_rules`, or an operator."""

    kind: CallerKind
    user_id: str | None = None
    email: str | None = None
    role: str | None = None
    claims: Mapping[str, Any] = field(default_factory=dict, hash=False)
    key_id: str | None = None
    reads_only: bool = False
    bypass: bool = False

    @classmethod
    def of(cls, caller: Caller) -> "Principal":
        if caller.kind == "key":
            return cls("key", key_id=caller.id, bypass=caller.may("rows:bypass_rules"))
        if caller.kind == "anonymous":
            return cls("anonymous", key_id=caller.id)
        if caller.kind in ("account", "staff"):
            role = caller.environment.role if caller.environment else None
            return cls("account", user_id=caller.id, email=caller.email, reads_only=role not in ("owner", "developer"))
        return cls("user", user_id=caller.id, email=caller.email, role=caller.role, claims=caller.claims)

    @classmethod
    def of_user(cls, user: "User") -> "Principal":
        return cls("user", user_id=user.pk, email=user.email, role=user.role, claims=user.claims)


PRINCIPALS: Final = {SERVER: Principal("key"), MEMBER: Principal("account"), ANONYMOUS: Principal("anonymous")}
"""By role, except those of users."""
BUILT_IN_ROLES: Final = (USER, *PRINCIPALS)


def resolve(variable: Variable, principal: Principal, now: datetime | None = None) -> Any:
    """The Python value, or None if missing, null, empty ("", [], {}) or of another type. Raises LookupError for `$old`,
    and for `$now` without a time."""
    raw = _raw(variable.name, principal, now)
    if raw is None:
        return None
    if isinstance(raw, datetime):
        return raw.date() if variable.type == "date" else raw
    try:
        if variable.form == "plain":
            value = read(variable.type, raw)
        else:
            value = read(ELEMENTS.get(variable.type, variable.type), raw)
            if value:
                # Whoever chooses the value must not choose a pattern: `a_b@example.com` is not `axb@example.com`.
                value = shape_operand("exact" if variable.form == "like" else variable.form, value)
    except InvalidValue:
        return None
    return None if value in ("", (), [], {}) else value


def _raw(name: str, principal: Principal, now: datetime | None) -> Any:
    match name:
        case "user.id":
            return principal.user_id
        case "user.email":
            return principal.email
        case "user.role":
            return principal.role
        case "key.id":
            return principal.key_id
        case "now" if now is not None:
            return now
    if not name.startswith("user.claims."):
        raise LookupError(f"${name} has no value of its own")
    at: Any = principal.claims
    for part in name.split(".")[2:]:
        if not isinstance(at, Mapping):
            return None
        at = at.get(part)
    return at


def bind(variable: Variable, principal: Principal) -> bytes | None:
    """The wire value; None as `resolve`. Never `$now`, which is the database's (`role_view`)."""
    value = resolve(variable, principal)
    return None if value is None else wire(variable.type, value)
