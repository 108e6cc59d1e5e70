"""Who may manage which API keys, and which scopes they may grant. A project's owner manages all keys of its
environments, a developer their own, a key with `keys:manage` those of its environment, an account its own. No caller
grants a scope that it lacks, and no key outlives the key that made it. Invisible is 404, forbidden 403."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db.models import QuerySet

from accounts.directory import environments as environment_directory
from accounts.models import ServerKey
from platform_site.http.errors import Forbidden, NotFound, ProjectSuspended, first_or
from platform_site.identity import ids
from platform_site.identity.callers import ACCOUNT_SCOPES, ENVIRONMENT_SCOPES, Caller
from platform_site.identity.plans import plan_limits

MANAGE: Final = "keys:manage"
MAX_FOR_OPERATORS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAuthority:
    environment_id: str | None = None
    project_id: str | None = None
    account_id: str | None = None
    """The owner of account keys; None for an environment's."""
    made_by: str | None = None
    """Only keys that this account made; None for all."""
    grantable: frozenset[str]
    most: int
    """Maximum number of keys, expired ones included."""
    until: datetime | None = None
    """When a new key has to expire at the latest."""
    is_suspended: bool = False

    @property
    def owner(self) -> str:
        return self.environment_id or self.account_id or ""

    def require_active(self) -> None:
        """Raise ProjectSuspended: keys of a suspended project are seen and revoked, not issued."""
        if self.is_suspended:
            raise ProjectSuspended

    def unrevoked(self) -> "QuerySet[ServerKey]":
        return ServerKey.objects.filter(
            environment_id=self.environment_id, account_id=self.account_id, revoked_at__isnull=True
        )

    def visible(self) -> "QuerySet[ServerKey]":
        """Keys that the caller may see, and so revoke."""
        return self.unrevoked().filter(created_by_id=self.made_by) if self.made_by else self.unrevoked()


def operators(*, environment_id: str | None = None, account_id: str | None = None) -> KeyAuthority:
    """For commands: the authority over the keys of an environment, or of an account."""
    grantable = ENVIRONMENT_SCOPES if environment_id else ACCOUNT_SCOPES
    return KeyAuthority(
        environment_id=environment_id, account_id=account_id, grantable=grantable, most=MAX_FOR_OPERATORS
    )


def over_keys(caller: Caller, environment_id: str | None) -> KeyAuthority:
    """The caller's authority over the keys of `environment_id`; None means a key's own environment, or the account
    itself. Raises NotFound, Forbidden."""
    made_by = until = None
    if caller.kind != "account":
        caller.need(MANAGE)
        environment, scopes = caller.environment, caller.scopes
        if environment is None or environment_id not in (None, environment.environment_id):
            raise NotFound
        until = ServerKey.objects.filter(pk=caller.id).values_list("expires_at", flat=True).first()
    elif environment_id is None:
        most = plan_limits(caller.plan).keys_per_environment
        return KeyAuthority(account_id=caller.id, grantable=ACCOUNT_SCOPES, most=most)
    else:
        found = environment_directory.directory().environment_ref_for(caller, environment_id)
        if found is None:
            raise NotFound
        environment, scopes = found
        if MANAGE not in scopes:
            raise Forbidden("Only owners and developers of the project can manage its keys.")
        made_by = None if environment.role == "owner" else caller.id
    return KeyAuthority(
        environment_id=environment.environment_id,
        project_id=environment.project_id,
        made_by=made_by,
        grantable=scopes,
        most=plan_limits(environment.plan).keys_per_environment,
        until=until,
        is_suspended=environment.is_suspended,
    )


def key_for(caller: Caller, key_id: str) -> tuple[ServerKey, KeyAuthority]:
    """The live key `key_id`, if the caller may revoke it. Raises NotFound and Forbidden."""
    named = ServerKey.objects.filter(pk=key_id if ids.matches("key", key_id) else "")
    environment_id = None
    if caller.kind == "account":
        known = first_or(named.filter(revoked_at__isnull=True), NotFound)
        environment_id = known.environment_id
    authority = over_keys(caller, environment_id)
    key = first_or(authority.visible() & named, NotFound)
    return key, authority
