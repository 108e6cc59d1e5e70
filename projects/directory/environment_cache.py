"""What is known of the environment that a call means: read with the credential in one statement, cached beside it.

A place record stands under one of four names, so that both records of a request are fetched at once, before either is
known:

| Who asks | Name |
|---|---|
| an app user | `where:<env>` |
| an environment's key | `where:<name of the key's own record>` |
| an account that names an environment | `where:<usr>:<env>` |
| an account that names none | `where:<usr>:` |

Whoever changes what such a record says marks it (`accounts.tokens.revocation`): readers then ask PostgreSQL until the
mark expires. The functions called `forget_…` do so, in the transaction of the change.
"""

from collections.abc import Iterable
from typing import Any, Final, get_args

import orjson
from django.contrib.postgres.expressions import ArraySubquery
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import OuterRef

from accounts.models import ServerKey
from accounts.tokens import revocation
from accounts.tokens.credentials import key_cache_name
from platform_site.identity.callers import Place, ProjectRole
from platform_site.identity.plans import PLANS
from projects.models import Environment, Member

DEFAULT_ENVIRONMENT: Final = "production"
JSON_ARRAY: Final = ArrayField(models.JSONField())
"""What the statements below return: JSON objects, each the members of a place."""


def name_for_user(environment_id: str) -> str:
    return f"where:{environment_id}"


def name_for_key(cache_name: str) -> str:
    """`cache_name` is that of the key's own record."""
    return f"where:{cache_name}"


def name_for_account(account_id: str, environment_id: str | None) -> str:
    """`environment_id` is the one that the call names, None for "the only project's production"."""
    return f"where:{account_id}:{environment_id or ''}"


# ── Statements ──────────────────────────────────────────────────────────────────────────────────────────────────────


def of_credential() -> ArraySubquery:
    """For `accounts.users.identity_lookup.identify`: the place of an app user's session or an environment's key, as
    JSON, none or one."""
    return ArraySubquery(Environment.objects.reachable().filter(pk=OuterRef("environment_id")).places_as_json())


def of_account(column: str, environment_id: str | None) -> ArraySubquery:
    """The place that an account means, as JSON with its role, none or one; two where it named none and has several
    projects.

    `column` holds the account's id in the statement around.
    """
    reachable = Environment.objects.reachable().of_account(OuterRef(column))
    if environment_id is not None:
        return ArraySubquery(reachable.filter(pk=environment_id).places_as_json())
    return ArraySubquery(reachable.filter(name=DEFAULT_ENVIRONMENT, parent=None).places_as_json()[:2])


def from_json(columns: dict[str, Any]) -> Place:
    """The place of one JSON object made by `places_as_json`."""
    origins = columns.pop("allowed_origins")
    return Place(**columns, allowed_origins=tuple(origins))


def to_record(found: list[dict[str, Any]]) -> bytes:
    """What the cache keeps of the JSON objects of one call.

    Processes of the release before share the cache and make a `Place` of every member: `is_suspended`, which they do
    not know, is left out where it says nothing.
    """
    return orjson.dumps(
        [{name: value for name, value in each.items() if name != "is_suspended" or value} for each in found]
    )


_TEXTS: Final = ("environment_id", "environment_name", "project_id", "region", "cluster", "plan", "pool_id")
_OTHERS: Final = {"role", "allowed_origins", "is_suspended"}


def from_record(record: bytes) -> list[dict[str, Any]]:
    """What `to_record` kept. Raises ValueError for what another release may have made of it."""
    found = orjson.loads(record)
    if not isinstance(found, list) or not all(isinstance(each, dict) and _is_ours(each) for each in found):
        raise ValueError("not places of this release")
    return found


def _is_ours(columns: dict[str, Any]) -> bool:
    origins = columns.get("allowed_origins")
    return (
        columns.keys() - _OTHERS == set(_TEXTS)
        and all(isinstance(columns[name], str) for name in _TEXTS)
        and columns["plan"] in PLANS
        and columns.get("role") in (None, *get_args(ProjectRole))
        and isinstance(origins, list)
        and all(isinstance(origin, str) for origin in origins)
        and isinstance(columns.get("is_suspended", False), bool)
    )


# ── Marks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def forget_account(account_id: str) -> None:
    """The account's projects change, and with them what a call means that names no environment."""
    revocation.ask([name_for_account(account_id, None)])


def forget_members(project_id: str, account_ids: Iterable[str]) -> None:
    """What these accounts are in the project changes. One query."""
    environment_ids = list(Environment.objects.filter(project_id=project_id).values_list("pk", flat=True))
    revocation.ask(_of_accounts(account_ids, environment_ids))


def forget_project(project_id: str) -> None:
    """The project's plan or life changes, or its suspension, for everyone. Three queries."""
    environment_ids = list(Environment.objects.filter(project_id=project_id).values_list("pk", flat=True))
    account_ids = list(Member.objects.filter(project_id=project_id).values_list("user_id", flat=True))
    revocation.ask([*_of_accounts(account_ids, environment_ids), *_of_environments(environment_ids)])


def forget_environment(environment: Environment) -> None:
    """The environment's life or settings change. Two queries."""
    account_ids = list(Member.objects.filter(project_id=environment.project_id).values_list("user_id", flat=True))
    revocation.ask([*_of_accounts(account_ids, [environment.pk]), *_of_environments([environment.pk])])


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
