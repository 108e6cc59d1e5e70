"""What each kind of caller may do: scopes by role. Pure data and set arithmetic, no database. A role is held in a
project, so a project named in the path asks for it there (`projects.directory.access`), and a call that means an
environment gets its scopes here, from the role in that environment's project."""

from typing import Final

from platform_site.identity.callers import ACCOUNT_SCOPES, ENVIRONMENT_SCOPES, PUBLISHABLE_SCOPES, SCOPES, ProjectRole

EVERYTHING: Final = frozenset(SCOPES)

BY_ROLE: Final[dict[ProjectRole, frozenset[str]]] = {
    "owner": EVERYTHING,
    # Members and the keys of others are no scopes: the services of those two ask for the role itself.
    "developer": EVERYTHING - {"projects:delete"},
    "viewer": frozenset(
        {
            "projects:read",
            "environments:read",
            "schema:read",
            "rows:read",
            "webhooks:read",
            "functions:read",
        }
    ),
}
"""An account's scopes in an environment. `rows:bypass_rules` is there to be granted to keys: a member's own calls obey
the rules of role `member`."""

ACCOUNT_WITHOUT_PLACE: Final = frozenset(
    {"projects:read", "projects:create", "projects:delete", "environments:read", "environments:write", "keys:manage"}
)
"""An account's scopes where the call means no environment: the addressed project or environment then asks for the
role."""

APP_USER: Final = frozenset(
    {"rows:read", "rows:write", "functions:read", "functions:invoke", "projects:read", "environments:read"}
)
"""An app user's scopes in its environment; the rules of the tables and functions narrow them."""

_RANK: Final[dict[ProjectRole, int]] = {"viewer": 0, "developer": 1, "owner": 2}


def is_at_least(role: ProjectRole, needed: ProjectRole) -> bool:
    """Whether `role` includes all that `needed` may do."""
    return _RANK[role] >= _RANK[needed]


def of_key(scopes: frozenset[str], *, bound_to_environment: bool) -> frozenset[str]:
    """A key's effective scopes: those it was given, as far as a key of its kind may hold them."""
    return scopes & (ENVIRONMENT_SCOPES if bound_to_environment else ACCOUNT_SCOPES)


def of_publishable_key(scopes: frozenset[str], *, bound_to_environment: bool) -> frozenset[str]:
    """What whoever shows a publishable key may do, whatever its record says; nothing without an environment."""
    return scopes & PUBLISHABLE_SCOPES if bound_to_environment else frozenset()
