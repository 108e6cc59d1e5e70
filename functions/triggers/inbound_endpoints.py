"""Cache and storage of inbound endpoints. A change marks the cache entry in its transaction
(`accounts.tokens.revocation`): a revoked endpoint is gone with the next request. A long-lived verification entry
exempts an existing endpoint from the limit on lookups (`functions.inbound.dispatch`); a wrong one costs one lookup,
which removes it."""

import logging
from dataclasses import astuple, dataclass
from typing import Final

from django.db import Error
from django.db.models import QuerySet

from accounts.tokens import revocation
from functions.models import Function, InboundEndpoint
from functions.triggers.run_as_check import TriggerKind
from platform_site.http.errors import ValidationFailed
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import PLANS
from platform_site.postgres import statements
from platform_site.redis import client as redis_client
from platform_site.redis.records import Format, types_of

logger = logging.getLogger("platform.functions")


@dataclass(frozen=True, slots=True)
class CachedEndpoint:
    endpoint_id: str
    function_name: str
    is_async: bool
    runs_as_kind: str
    runs_as_id: str
    plan: str
    """At the lookup, for the rate limit."""


VERIFIED: Final = b"+"
_VERIFICATION_TTL: Final = 90 * 86_400  # renewed by each lookup and each periodic run
_AT_ONCE: Final = 1000
_FORMAT: Final = Format(types_of(CachedEndpoint), [*PLANS])


def cache_key(token_hash: bytes) -> str:
    return f"who:inbound:{token_hash[:16].hex()}"


def verification_key(token_hash: bytes) -> str:
    return f"proven:inbound:{token_hash[:16].hex()}"


def names_of(token_hash: bytes) -> list[str]:
    return [cache_key(token_hash), verification_key(token_hash)]


def verify(*token_hashes: bytes) -> None:
    redis_client.current().put({verification_key(each): VERIFIED for each in token_hashes}, _VERIFICATION_TTL)


def verify_all(using: str) -> None:
    endpoints, last = InboundEndpoint.objects.using(using).order_by("pk").values_list("pk", "token_hash"), ""
    while page := list(endpoints.filter(pk__gt=last)[:_AT_ONCE]):
        verify(*(bytes(token_hash) for _, token_hash in page))
        last = page[-1][0]


def cache_absence(token_hash: bytes) -> None:
    redis_client.current().put(dict.fromkeys(names_of(token_hash), revocation.REVOKED), redis_client.MARKER_TTL)


def to_bytes(record: CachedEndpoint) -> bytes:
    return _FORMAT.dump(astuple(record))


def from_bytes(data: bytes | None) -> CachedEndpoint | None:
    """The entry of `to_bytes`; None if it is missing, marked, or of another format."""
    try:
        return None if data is None else CachedEndpoint(*_FORMAT.load(data))
    except ValueError:
        return None


def look_up(environment: EnvironmentRef, token_hash: bytes) -> CachedEndpoint | None:
    endpoints = InboundEndpoint.objects.using(environment.cluster).filter(
        token_hash=token_hash, function__environment_id=environment.environment_id
    )
    found = endpoints.values_list("pk", "function__name", "is_async", "runs_as_kind", "runs_as_id").first()
    if found is None:
        return None
    record = CachedEndpoint(*found, environment.plan)
    redis_client.current().fill(cache_key(token_hash), to_bytes(record))
    verify(token_hash)
    return record


# The setting is part of the statement: the request does not wait for the disk to record its use.
_USED: Final = """
UPDATE platform.functions_inboundendpoint SET uses = uses + 1, last_used_at = statement_timestamp()
  FROM (SELECT set_config('synchronous_commit', 'off', true)) setting
 WHERE id = %s
"""


def note_use(environment: EnvironmentRef, endpoint_id: str) -> None:
    """Never raises: the call itself has succeeded."""
    try:
        statements.execute(environment.cluster, _USED, [endpoint_id])
    except Error as error:
        message = "the use of an inbound endpoint was not recorded: %s"
        logger.warning(message, type(error).__name__, extra={"address": endpoint_id})


def set_run_as(function: Function, using: str, *, by: Caller | None) -> TriggerKind | None:
    """As `schedules.set_run_as`, in the transaction that holds the function's lock."""
    endpoints = _of(function.pk, using)
    hashes = list(endpoints.values_list("token_hash", flat=True))
    if not hashes:
        return None
    if function.invoke == "user":
        message = "The function has inbound endpoints, which invoke it as a key or a member. Revoke them first."
        raise ValidationFailed.of("invoke", "has_addresses", message)
    if by is not None:
        endpoints.update(runs_as_kind=by.kind, runs_as_id=by.id)
        revocation.mark_uncached(cache_key(bytes(each)) for each in hashes)
    return TriggerKind("by inbound endpoints", "revoke its inbound endpoints", ("functions:invoke",))


def _of(function_id: str, using: str) -> QuerySet[InboundEndpoint]:
    return InboundEndpoint.objects.using(using).filter(function_id=function_id)


def delete_all(using: str, function_id: str) -> None:
    endpoints = _of(function_id, using)
    hashes = endpoints.values_list("token_hash", flat=True)
    revocation.revoke([name for each in hashes for name in names_of(bytes(each))], using=using)
    endpoints.delete()
