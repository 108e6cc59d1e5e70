"""The caller: who sent a request and what it may do. `projects.api.authentication` creates it; everything else reads
it."""

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from platform_site.http.errors import Forbidden, ProjectSuspended

CallerKind = Literal["account", "user", "key", "anonymous", "staff"]
"""`anonymous` is a caller with a publishable key, which is public; `staff` has a grant (`projects.staff_access`)."""
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
"""What a key bound to an account may hold."""
ENVIRONMENT_SCOPES: Final = frozenset(SCOPES) - {"projects:create", "projects:delete"}
"""What a key bound to an environment may hold."""
PUBLISHABLE_KEY_PREFIX: Final = "pk_"
PUBLISHABLE_SCOPES: Final = frozenset({"rows:read", "rows:write", "functions:invoke"})
"""The scopes that a publishable key may have: those of endpoints with rules for anonymous callers."""

_LACKED_BY: Final[dict[CallerKind, str]] = {
    "key": "",
    "anonymous": "",
    "user": ", which users of an application do not have",
    "account": ", which your role in the project does not give",
    "staff": ", which staff access does not give",
}
"""A key is made with scopes. Who signs in never chose any, and finds none to look for."""


@dataclass(frozen=True, slots=True)
class EnvironmentRef:
    """The environment a call means, resolved. `role` is the account's role in its project, None for users and keys."""

    environment_id: str
    environment_name: str
    project_id: str
    region: str
    cluster: str
    """The Django database alias of the region (`Project.cluster`)."""
    plan: str
    pool_id: str
    """The environment whose users sign in here: itself, or for a preview branch the environment it came from."""
    role: ProjectRole | None = None
    allowed_origins: tuple[str, ...] = ()
    """Web origins whose pages may read answers: `("*",)` for all, empty for none, else exact origins."""
    is_suspended: bool = False
    """Whether operators have suspended the project (`projects.provisioning.suspension`)."""

    def require_active(self) -> None:
        """Raise ProjectSuspended while the project is suspended."""
        if self.is_suspended:
            raise ProjectSuspended


@dataclass(frozen=True, slots=True)
class Caller:
    """One authenticated request's principal. `scopes` is already the effective set: a key's own, an account's by its
    role in `place`'s project, an app user's fixed few. `place` is None for an account (or account key) whose call named
    no environment and needs none."""

    kind: CallerKind
    id: str
    """`usr_…` for accounts and app users, `key_…` for keys, including publishable ones."""
    scopes: frozenset[str]
    plan: str = "free"
    place: EnvironmentRef | None = None
    session_id: str | None = None
    account_id: str | None = None
    """The platform account behind the call: itself for accounts, the account an account key is bound to, else None."""
    email: str | None = None
    name: str | None = None
    role: str | None = None
    """An app user's stored role, for rules."""
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
        """Raise Forbidden, in words for this kind of caller, if it lacks the scope."""
        if not self.may(scope):
            raise Forbidden(f"This needs the scope {scope}{_LACKED_BY[self.kind]}.")
