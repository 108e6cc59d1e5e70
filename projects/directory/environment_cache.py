"""Cached environment records, read with the credential in one statement and cached next to it, under keys that are
known before either record: `where:<env>` for app users, `where:<cache key of the key>` for environment keys,
`where:<usr>:<env>` or `where:<usr>:` for accounts. `evict_…` marks them in the transaction of a change
(`accounts.tokens.revocation`)."""

from collections.abc import Iterable
from typing import Any, Final

from django.contrib.postgres.expressions import ArraySubquery
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Exists, F, OuterRef, Q

from accounts.models import ServerKey
from accounts.tokens import revocation
from accounts.tokens.credentials import key_cache_name
from platform_site.identity.callers import EnvironmentRef
from platform_site.identity.plans import PLANS
from platform_site.redis.records import Format, types_of
from projects.models import Environment, Member, Project

DEFAULT_ENVIRONMENT: Final = "production"
JSON_ARRAY: Final = ArrayField(models.JSONField())
"""An array of JSON objects, each with the fields of `EnvironmentRef`."""


def name_for_user(environment_id: str) -> str:
    return f"where:{environment_id}"


def name_for_key(cache_name: str) -> str:
    return f"where:{cache_name}"


def name_for_account(account_id: str, environment_id: str | None) -> str:
    """`environment_id` None means the production of the account's own or only project (`of_account`)."""
    return f"where:{account_id}:{environment_id or ''}"


def of_credential() -> ArraySubquery:
    return ArraySubquery(Environment.objects.reachable().filter(pk=OuterRef("environment_id")).refs_as_json())


def of_account(environment_id: str | None) -> ArraySubquery:
    """The environment of an account's call (`user_id` of the outer statement) as JSON with its role; two if it is
    ambiguous. An owner of another project can add the account without its consent, so projects that it created come
    first: otherwise its calls without an environment would be ambiguous, or mean that project."""
    reachable = Environment.objects.reachable().of_account(OuterRef("user_id"))
    if environment_id is not None:
        return ArraySubquery(reachable.filter(pk=environment_id).refs_as_json())
    default = reachable.filter(name=DEFAULT_ENVIRONMENT, parent=None)
    own = Project.objects.live().filter(created_by=OuterRef(OuterRef("user_id")), memberships__user=F("created_by"))
    return ArraySubquery(default.filter(Q(project__created_by=OuterRef("user_id")) | ~Exists(own)).refs_as_json()[:2])


def from_json(columns: dict[str, Any]) -> EnvironmentRef:
    origins = columns.pop("allowed_origins")
    return EnvironmentRef(**columns, allowed_origins=tuple(origins))


_FORMAT: Final = Format(types_of(EnvironmentRef), [*PLANS])


def to_record(found: list[dict[str, Any]]) -> bytes:
    return _FORMAT.dump(found)


def from_record(record: bytes) -> list[dict[str, Any]]:
    """Raises ValueError for another format."""
    found: list[dict[str, Any]] = _FORMAT.load(record)
    return found


def evict_account(account_id: str) -> None:
    """For a change of the account's projects: affects calls without a named environment."""
    revocation.mark_uncached([name_for_account(account_id, None)])


def evict_members(project_id: str, account_ids: Iterable[str]) -> None:
    environment_ids = list(Environment.objects.filter(project_id=project_id).values_list("pk", flat=True))
    revocation.mark_uncached(_of_accounts(account_ids, environment_ids))


def evict_project(project_id: str) -> None:
    environment_ids = list(Environment.objects.filter(project_id=project_id).values_list("pk", flat=True))
    account_ids = list(Member.objects.filter(project_id=project_id).values_list("user_id", flat=True))
    revocation.mark_uncached([*_of_accounts(account_ids, environment_ids), *_of_environments(environment_ids)])


def evict_environment(environment: Environment) -> None:
    account_ids = list(Member.objects.filter(project_id=environment.project_id).values_list("user_id", flat=True))
    revocation.mark_uncached([*_of_accounts(account_ids, [environment.pk]), *_of_environments([environment.pk])])


def _of_accounts(account_ids: Iterable[str], environment_ids: list[str]) -> list[str]:
    return [
        name_for_account(account_id, environment_id)
        for account_id in account_ids
        for environment_id in (None, *environment_ids)
    ]


def _of_environments(environment_ids: list[str]) -> list[str]:
    hashes = ServerKey.objects.filter(environment_id__in=environment_ids, revoked_at__isnull=True)
    return [name_for_user(environment_id) for environment_id in environment_ids] + [
        name_for_key(key_cache_name(bytes(secret_hash))) for secret_hash in hashes.values_list("secret_hash", flat=True)
    ]
