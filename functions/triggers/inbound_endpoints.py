"""The row of an inbound address, what Redis remembers of it, and what becomes of it with its function.

A record lives `redis_client.RECORD_TTL` in Redis under half the token's hash. Whoever changes what it says marks it in
the transaction of the change (`accounts.tokens.revocation`), as of a key: a revoked address is gone with the next
request.

Beside it lives a proof that there is such an address, for long: it says nothing of where that leads, and spares those
who come by it the bound on look-ups (`functions.inbound.dispatch`). Revocations mark it, too; one that is wrong all the
same (Redis was away, a late reader wrote it) costs one look-up, which takes it away.

Its runs execute as whoever made the address or deployed the function since, as a schedule's do and for the same reason
(`functions.triggers.schedules`): code that somebody deploys never has the rights of who made the address before.
"""

from dataclasses import astuple, dataclass
from typing import Final

import orjson
from django.db import connections
from django.db.models import QuerySet

from accounts.tokens import revocation
from functions.models import Function, InboundAddress
from functions.triggers.run_as_check import Way
from platform_site.http.errors import ValidationFailed
from platform_site.identity.callers import Caller, Place
from platform_site.identity.plans import PLANS
from platform_site.redis import client as redis_client


@dataclass(frozen=True, slots=True)
class Record:
    """What an address leads to."""

    address_id: str
    function_name: str
    is_async: bool
    runs_as_kind: str
    runs_as_id: str
    plan: str
    """The environment's when it was looked up: for the rate, before anything else is asked."""


PROVEN: Final = b"+"
_PROOF_TTL: Final = 90 * 86_400
"""Seconds. Each look-up and each sweep begins them anew."""
_AT_ONCE: Final = 1000
_TYPES: Final = (str, str, bool, str, str, str)


def cache_name(token_hash: bytes) -> str:
    return f"who:inbound:{token_hash[:16].hex()}"


def proof_name(token_hash: bytes) -> str:
    return f"proven:inbound:{token_hash[:16].hex()}"


def names_of(token_hash: bytes) -> list[str]:
    """What to mark in Redis where the address ends."""
    return [cache_name(token_hash), proof_name(token_hash)]


def prove(*token_hashes: bytes) -> None:
    """Remember that there are such addresses. One trip; never raises."""
    redis_client.put({proof_name(each): PROVEN for each in token_hashes}, _PROOF_TTL)


def prove_all(using: str) -> None:
    """Remember it of all that the region has, whatever Redis has lost or was not told. Reads all of them."""
    addresses, last = InboundAddress.objects.using(using).order_by("pk").values_list("pk", "token_hash"), ""
    while page := list(addresses.filter(pk__gt=last)[:_AT_ONCE]):
        prove(*(bytes(token_hash) for _, token_hash in page))
        last = page[-1][0]


def remember_none(token_hash: bytes) -> None:
    """Remember for a while that there is no such address, as PostgreSQL said. One trip; never raises."""
    redis_client.put(dict.fromkeys(names_of(token_hash), revocation.GONE), redis_client.MARKER_TTL)


def to_bytes(record: Record) -> bytes:
    return orjson.dumps(astuple(record))


def from_bytes(data: bytes | None) -> Record | None:
    """What `to_bytes` made; None where nothing is kept, it is marked, or of another release's form."""
    if data is None or data == revocation.ASK:
        return None
    try:
        members = orjson.loads(data)
    except ValueError:
        return None
    is_ours = isinstance(members, list) and len(members) == len(_TYPES) and all(map(isinstance, members, _TYPES))
    return Record(*members) if is_ours and members[-1] in PLANS else None


_LOOK_UP: Final = """
SELECT a.id, f.name, a.is_async, a.runs_as_kind, a.runs_as_id
  FROM platform.functions_inboundaddress a JOIN platform.functions_function f ON f.id = a.function_id
 WHERE a.token_hash = %s AND f.environment_id = %s
"""


def look_up(place: Place, token_hash: bytes) -> Record | None:
    """The address of that token in the environment, asked of PostgreSQL and remembered; None if there is none."""
    with connections[place.cluster].cursor() as cursor:
        cursor.execute(_LOOK_UP, [token_hash, place.environment_id])
        found = cursor.fetchone()
    if found is None:
        return None
    address_id, function_name, is_async, kind, caller_id = found
    record = Record(address_id, function_name, is_async, kind, caller_id, place.plan)
    redis_client.fill(cache_name(token_hash), to_bytes(record))
    prove(token_hash)
    return record


# In one statement with the setting: that it was used is no news that a request has to wait on the disk for.
_USED: Final = """
UPDATE platform.functions_inboundaddress SET uses = uses + 1, last_used_at = statement_timestamp()
  FROM (SELECT set_config('synchronous_commit', 'off', true)) setting
 WHERE id = %s
"""


def note_use(place: Place, address_id: str) -> None:
    """Count a request that it took. One statement."""
    with connections[place.cluster].cursor() as cursor:
        cursor.execute(_USED, [address_id])


def activated(function: Function, using: str, *, by: Caller | None) -> None:
    """Another version answers: its addresses run as `by` from now on, who chose it and may (`way`); as before where
    that is None, staff or a command. In the transaction that has the function's lock. Raises ValidationFailed."""
    addresses = _of(function, using)
    hashes = list(addresses.values_list("token_hash", flat=True))
    if not hashes:
        return
    if function.invoke == "user":
        message = "The function has inbound addresses, which invoke it as a key or a member. Revoke them first."
        raise ValidationFailed.of("invoke", "has_addresses", message)
    if by is None:
        return
    addresses.update(runs_as_kind=by.kind, runs_as_id=by.id)
    revocation.ask(cache_name(bytes(each)) for each in hashes)


def way(function: Function, using: str) -> Way | None:
    """What it takes to stand behind its addresses; None where it has none. One query."""
    if not _of(function, using).exists():
        return None
    return Way("by inbound addresses", "revoke its inbound addresses", ("functions:invoke",))


def _of(function: Function, using: str) -> QuerySet[InboundAddress]:
    return InboundAddress.objects.using(using).filter(function_id=function.pk)


def delete_all(using: str, function_id: str) -> None:
    """No address leads to the function any more, from the commit of the transaction at hand."""
    addresses = InboundAddress.objects.using(using).filter(function_id=function_id)
    hashes = addresses.values_list("token_hash", flat=True)
    revocation.revoke([name for each in hashes for name in names_of(bytes(each))], using=using)
    addresses.delete()
