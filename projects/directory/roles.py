"""Scopes by role and kind of caller. Pure. Projects in a path: `projects.directory.access`."""

from typing import Final

from platform_site.identity.callers import ACCOUNT_SCOPES, ENVIRONMENT_SCOPES, PUBLISHABLE_SCOPES, SCOPES, ProjectRole

EVERYTHING: Final = frozenset(SCOPES)

BY_ROLE: Final[dict[ProjectRole, frozenset[str]]] = {
    "owner": EVERYTHING,
    # There are no scopes for members and for the keys of others: the services of those two check the role itself.
    "developer": EVERYTHING - {"projects:delete"},
    "viewer": frozenset(
        {"projects:read", "environments:read", "schema:read", "rows:read", "webhooks:read", "functions:read"}
    ),
}
"""An account's scopes in an environment. `rows:bypass_rules` is only there to be granted to keys."""

ACCOUNT_WITHOUT_ENVIRONMENT: Final = frozenset(
    {"projects:read", "projects:create", "projects:delete", "environments:read", "environments:write", "keys:manage"}
)
"""An account's scopes without an environment; the project or environment in the path then decides by role."""

APP_USER: Final = frozenset(
    {"rows:read", "rows:write", "functions:read", "functions:invoke", "projects:read", "environments:read"}
)
"""An app user's scopes; rules of tables and functions narrow them."""

RANK: Final[dict[ProjectRole, int]] = {"viewer": 0, "developer": 1, "owner": 2}


def of_key(scopes: frozenset[str], *, bound_to_environment: bool) -> frozenset[str]:
    return scopes & (ENVIRONMENT_SCOPES if bound_to_environment else ACCOUNT_SCOPES)


def of_publishable_key(scopes: frozenset[str], *, bound_to_environment: bool) -> frozenset[str]:
    """A publishable key's scopes, whatever its record says; none without an environment."""
    return scopes & PUBLISHABLE_SCOPES if bound_to_environment else frozenset()
