"""Who reads or writes: the principal of a request, the role it is evaluated under, and the values of its variables."""

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
"""The role of callers with a publishable key. Users cannot have it (`accounts.users.service.RESERVED_ROLES`); a user
that has it from elsewhere gets `user:anonymous`, with the rules that tables have for that name."""

RoleKey = str
"""The role under which a principal is evaluated: `all`, `server`, `member`, `viewer`, `anonymous`, `user`, or
`user:<role>` for an app user whose role a table names. Few per schema version, so that it can be part of a statement's
cache key."""

ALL: Final[RoleKey] = "all"
VIEWER: Final[RoleKey] = "viewer"


@dataclass(frozen=True, slots=True)
class Principal:
    """In whose name rows are read and written. `user_id`, `email`, `role` and `claims` are an app user's (as stored,
    not as a token says); an account has an id and an e-mail, a key has its `key_id`; so has who is `anonymous`, of the
    key that was shown, and nothing else. `bypass` is the scope `rows:bypass_rules`, or an operator's own hand."""

    kind: CallerKind
    user_id: str | None = None
    email: str | None = None
    role: str | None = None
    claims: Mapping[str, Any] = field(default_factory=dict, hash=False)
    key_id: str | None = None
    reads_only: bool = False
    """A role_view of the project."""
    bypass: bool = False

    @classmethod
    def of(cls, caller: Caller) -> "Principal":
        """The principal that an authenticated caller is, in the environment of its `place`."""
        if caller.kind == "key":
            return cls("key", key_id=caller.id, bypass=caller.may("rows:bypass_rules"))
        if caller.kind == "anonymous":
            return cls("anonymous", key_id=caller.id)
        if caller.kind in ("account", "staff"):
            role = caller.place.role if caller.place else None
            return cls("account", user_id=caller.id, email=caller.email, reads_only=role not in ("owner", "developer"))
        return cls("user", user_id=caller.id, email=caller.email, role=caller.role, claims=caller.claims)

    @classmethod
    def of_user(cls, user: "User") -> "Principal":
        """An app user, as its requests would be."""
        return cls("user", user_id=user.pk, email=user.email, role=user.role, claims=user.claims)


def resolve(variable: Variable, principal: Principal, now: datetime | None = None) -> Any:
    """The value of a variable in Python's spelling, or None where it is missing, null, empty or not of its type. Empty
    are "", [] and {}; false and 0 are values. `now` is the moment of the statement in UTC, as the database says it.
    `$old` is not a value and raises LookupError, and so does `$now` without a moment."""
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
    """The value of a variable on the wire, under a cast to `variable.type`; None as `resolve`. Never `$now`, which is
    asked of the database's clock (`role_views`)."""
    value = resolve(variable, principal)
    return None if value is None else wire(variable.type, value)
