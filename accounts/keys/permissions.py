"""Who may handle which server keys, and which scopes they may hand on. A key belongs to an environment or to a platform
account. An owner of the project handles all keys of its environments, a developer those it made, a key with
`keys:manage` those of its own environment; an account handles its own. Nobody hands on a scope that they do not hold,
and no key more time than it has. What the caller may not see is 404, what it may see and not do 403."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import QuerySet

from accounts.directory import environments as environment_directory
from accounts.models import ServerKey
from platform_site.http.errors import Forbidden, NotFound
from platform_site.identity import ids
from platform_site.identity.callers import ACCOUNT_SCOPES, ENVIRONMENT_SCOPES, Caller
from platform_site.identity.plans import plan_limits

MANAGE: Final = "keys:manage"
MOST_FOR_OPERATORS: Final = 10_000


@dataclass(frozen=True, slots=True)
class KeyAuthority:
    """What one caller may do with the keys of one environment, or of itself (`environment_id` None)."""

    environment_id: str | None
    project_id: str | None
    account_id: str | None
    """The owner of account keys; None for keys of an environment."""
    made_by: str | None
    """Only keys that this account made; None for all of them."""
    grantable: frozenset[str]
    most: int
    """How many keys the plan allows, those that have expired among them."""
    until: datetime | None = None
    """When the keys that the caller makes end at the latest: a key that expires makes none that outlives it."""

    @property
    def owner(self) -> str:
        """The id of the environment or the account that the keys belong to."""
        return self.environment_id or self.account_id or ""

    def unrevoked(self) -> "QuerySet[ServerKey]":
        """All keys of the owner but those that were revoked."""
        keys = ServerKey.objects.filter(revoked_at__isnull=True)
        if self.environment_id is not None:
            return keys.filter(environment_id=self.environment_id)
        return keys.filter(account_id=self.account_id)

    def visible(self) -> "QuerySet[ServerKey]":
        """Those that the caller may see, and so also end."""
        return self.unrevoked().filter(created_by_id=self.made_by) if self.made_by else self.unrevoked()


def operators(*, environment_id: str | None = None, account_id: str | None = None) -> KeyAuthority:
    """The authority of the console and of commands: every scope that a key of this owner (one of the two) can hold."""
    if (environment_id is None) == (account_id is None):
        raise ValueError("a key belongs to an environment or to an account")
    grantable = ENVIRONMENT_SCOPES if environment_id else ACCOUNT_SCOPES
    return KeyAuthority(environment_id, None, account_id, None, grantable, most=MOST_FOR_OPERATORS)


def over_keys(caller: Caller, environment_id: str | None, *, to_issue: bool = False) -> KeyAuthority:
    """The caller's authority over the keys of `environment_id`; None means a key's own environment, or the account
    itself. Raises NotFound for an environment that the caller cannot see, Forbidden if it may not manage keys, and
    ProjectSuspended if it wants `to_issue` one; revoking is always possible. One query for a key, and for an account
    that names an environment."""
    if caller.kind == "account":
        return _of_account(caller, environment_id, to_issue)
    caller.need(MANAGE)
    if caller.place is None or environment_id not in (None, caller.place.environment_id):
        raise NotFound
    return KeyAuthority(
        environment_id=caller.place.environment_id,
        project_id=caller.place.project_id,
        account_id=None,
        made_by=None,
        grantable=caller.scopes,
        most=plan_limits(caller.place.plan).keys_per_environment,
        until=ServerKey.objects.filter(pk=caller.id).values_list("expires_at", flat=True).first(),
    )


def _of_account(caller: Caller, environment_id: str | None, to_issue: bool) -> KeyAuthority:
    if environment_id is None:
        most = plan_limits(caller.plan).keys_per_environment
        return KeyAuthority(None, None, caller.id, None, ACCOUNT_SCOPES, most)
    found = environment_directory.directory().place_for(caller, environment_id)
    if found is None:
        raise NotFound
    place, scopes = found
    if MANAGE not in scopes:
        raise Forbidden("Only owners and developers of the project handle its keys.")
    if to_issue:
        place.require_active()
    return KeyAuthority(
        environment_id=environment_id,
        project_id=place.project_id,
        account_id=None,
        made_by=None if place.role == "owner" else caller.id,
        grantable=scopes,
        most=plan_limits(place.plan).keys_per_environment,
    )


def key_for(caller: Caller, key_id: str) -> tuple[ServerKey, KeyAuthority]:
    """The live key `key_id`, which the caller may see and end. Raises NotFound and Forbidden. Up to two queries."""
    known = ids.matches("key", key_id)
    key = ServerKey.objects.filter(pk=key_id, revoked_at__isnull=True).first() if known else None
    if caller.kind != "account":
        authority = over_keys(caller, None)
    elif key is None:
        raise NotFound
    else:
        authority = over_keys(caller, key.environment_id)
    if (
        key is None
        or key.environment_id != authority.environment_id
        or key.account_id != authority.account_id
        or (authority.made_by is not None and key.created_by_id != authority.made_by)
    ):
        raise NotFound
    return key, authority
