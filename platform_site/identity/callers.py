"""The caller: who sent a request and what it may do. Created by `projects.api.authentication`."""

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from platform_site.http.errors import Forbidden, ProjectSuspended

CallerKind = Literal["account", "user", "key", "anonymous", "staff"]
"""`anonymous` has a publishable key; `staff` a grant (`projects.staff_access`)."""
APP_USERS: Final[frozenset[CallerKind]] = frozenset({"user", "anonymous"})
ProjectRole = Literal["owner", "developer", "viewer"]

SCOPES: Final = (
    "projects:read",
    "projects:create",
    "projects:delete",
    "environments:read",
    "environments:write",
    "schema:read",
    "schema:write",
    "rows:read",
    "rows:write",
    "rows:bypass_rules",
    "webhooks:read",
    "webhooks:write",
    "functions:read",
    "functions:invoke",
    "functions:deploy",
    "users:manage",
    "keys:manage",
    "logs:read",
)
ACCOUNT_SCOPES: Final = frozenset({"projects:read", "projects:create", "projects:delete"})
ENVIRONMENT_SCOPES: Final = frozenset(SCOPES) - {"projects:create", "projects:delete"}
PUBLISHABLE_KEY_PREFIX: Final = "pk_"
PUBLISHABLE_SCOPES: Final = frozenset({"rows:read", "rows:write", "functions:invoke"})

_LACKED_BY: Final[dict[CallerKind, str]] = {
    "key": "",
    "anonymous": "",
    "user": ", which users of an application do not have",
    "account": ", which your role in the project does not give",
    "staff": ", which staff access does not give",
}


@dataclass(frozen=True, slots=True)
class EnvironmentRef:
    """`role` is the account's; None for users and keys."""

    environment_id: str
    environment_name: str
    project_id: str
    region: str
    cluster: str
    plan: str
    pool_id: str
    """The environment whose users sign in here: itself, or a branch's source."""
    role: ProjectRole | None = None
    allowed_origins: tuple[str, ...] = ()
    """`("*",)` for all, else exact origins."""
    is_suspended: bool = False

    @property
    def is_branch(self) -> bool:
        return self.pool_id != self.environment_id

    def require_active(self) -> None:
        if self.is_suspended:
            raise ProjectSuspended


@dataclass(frozen=True, slots=True)
class Caller:
    """`scopes` is the effective set. `environment` is None if an account's call needs none."""

    kind: CallerKind
    id: str
    """`usr_…`, or `key_…` for all keys."""
    scopes: frozenset[str]
    plan: str = "free"
    environment: EnvironmentRef | None = None
    session_id: str | None = None
    account_id: str | None = None
    email: str | None = None
    name: str | None = None
    role: str | None = None
    claims: dict[str, Any] = field(default_factory=dict)

    # DRF and Django look for these two on `request.user`.
    is_authenticated: bool = True
    is_active: bool = True

    @property
    def pk(self) -> str:
        return self.id

    def may(self, scope: str) -> bool:
        return scope in self.scopes

    def need(self, scope: str) -> None:
        if not self.may(scope):
            raise Forbidden(f"This needs the scope {scope}{_LACKED_BY[self.kind]}.")
