"""What the owner of a function does with its inbound addresses: make one, see them, revoke one.

Called by the API, the console and the command alike; the scope is the view's to ask.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.conf import settings
from django.db import transaction

from accounts.audit import Actor
from accounts.tokens import revocation
from functions.deploy.service import function_of
from functions.errors import AddressesQuotaReached, ForUsersOnly, NoSuchAddress
from functions.execution.run_as import caller_again
from functions.models import Function, InboundAddress
from functions.triggers import inbound_endpoints, inbound_tokens
from platform_site.http.errors import Forbidden
from platform_site.identity import ids
from platform_site.identity.callers import Caller, Place
from rows.outbox import audit as audit_outbox

MOST: Final = 10
"""Addresses of one function, on every plan."""


@dataclass(frozen=True, slots=True)
class Shown:
    """An address as its owner sees it."""

    address: InboundAddress
    is_stopped: bool
    """Whoever it runs as may not invoke there any more, so it answers as if it were not there."""


def make(
    place: Place, name: str, values: Mapping[str, Any], *, runs_as: Caller, actor: Caller | Actor
) -> tuple[Shown, str]:
    """An address that leads to the function and runs it as `runs_as`, a key or an account, and its URL, which nobody
    can be told again. `values`: `async`, and optionally `label`.

    Raises NoSuchFunction, Forbidden, ForUsersOnly, AddressesQuotaReached.
    """
    if not runs_as.may("functions:invoke"):
        raise Forbidden("The function would run by the address as you: that needs functions:invoke, too.")
    token = inbound_tokens.make(place.environment_id)
    with transaction.atomic(using=place.cluster):
        function = function_of(place, name, lock=True)
        if function.invoke == "user":
            raise ForUsersOnly
        if InboundAddress.objects.using(place.cluster).filter(function=function).count() >= MOST:
            raise AddressesQuotaReached(MOST)
        address = InboundAddress.objects.using(place.cluster).create(
            function=function,
            token_hash=inbound_tokens.digest(token),
            label=values.get("label", ""),
            is_async=values["async"],
            runs_as_kind=runs_as.kind,
            runs_as_id=runs_as.id,
        )
        address.refresh_from_db(using=place.cluster)
        _record("function.inbound_made", place, function, address, actor)
    inbound_endpoints.prove(inbound_tokens.digest(token))
    return Shown(address, is_stopped=False), f"{settings.BASE_URL}/v1/inbound/{token}"


def all_of(place: Place, function: Function) -> list[Shown]:
    """The function's addresses, the oldest first. One query, and at most three for each that they run as."""
    found = list(InboundAddress.objects.using(place.cluster).filter(function=function).order_by("created_at", "id"))
    may_invoke = {who: _may_invoke(*who, place) for who in {(each.runs_as_kind, each.runs_as_id) for each in found}}
    return [Shown(each, is_stopped=not may_invoke[each.runs_as_kind, each.runs_as_id]) for each in found]


def revoke(place: Place, name: str, address_id: str, *, actor: Caller | Actor) -> None:
    """The address is gone with the next request. Raises NoSuchFunction, NoSuchAddress."""
    using = place.cluster
    with transaction.atomic(using=using):
        function = function_of(place, name)
        known = InboundAddress.objects.using(using).filter(function=function, pk=address_id)
        address = known.select_for_update().first() if ids.matches("inb", address_id) else None
        if address is None:
            raise NoSuchAddress("The function has no such inbound address.")
        revocation.revoke(inbound_endpoints.names_of(bytes(address.token_hash)), using=using)
        known.delete()
        _record("function.inbound_revoked", place, function, address, actor)


def _may_invoke(kind: str, caller_id: str, place: Place) -> bool:
    again = caller_again(kind, caller_id, place.environment_id)
    return again is not None and again[0].may("functions:invoke")


def _record(action: str, place: Place, function: Function, address: InboundAddress, actor: Caller | Actor) -> None:
    audit_outbox.record(
        place, action, actor=actor, target_id=function.pk, name=function.name, address=address.pk, label=address.label,
        runs_as=address.runs_as_id,
    )  # fmt: skip
