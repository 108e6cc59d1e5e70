"""Who comes by an inbound address: the function that it leads to, and as whom it runs, or the one refusal.

One trip to Redis fetches what is remembered of the address and raises the counter of this address and client; where
nothing is remembered, PostgreSQL is asked for the environment and in its region for the address. As whom the function
runs is looked up each time (`functions.execution.run_as`), so what its maker may not do any more the address does not
do either.

Unknown, revoked and stopped addresses get the same 404. A token has 125 random bits: no guess is right, and what is
bounded is how often PostgreSQL is asked. Ones that cannot be ask nothing and count for nothing. Ones that there are not
are remembered for a while, and count for the environment that they name, if there is such a one; who has sent many is
stopped before the next look-up. That never meets an address that leads somewhere, since providers send for many from
the same network, and anybody can point a provider at URLs that they made up: a token says by itself that it was made
here (`inbound_tokens.is_ours`), and is no guess. What is revoked says so, too; so these are bounded by themselves, for
each environment, which alone has them. And of each that there is Redis has a proof from its making on
(`inbound_endpoints`): that is for tokens from before they said so, and those whose key was dropped. Should Redis be
emptied, a sweep tells it again; until then this process knows what it has met by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.http import HttpRequest

from accounts.tokens.revocation import GONE
from functions.errors import NoSuchAddress
from functions.execution.run_as import caller_again
from functions.triggers import inbound_endpoints, inbound_tokens
from functions.triggers.inbound_endpoints import Record
from platform_site.identity.callers import Caller, Place
from platform_site.redis import client as redis_client
from platform_site.redis import rate_limits
from projects.directory.environments import place_of

_MOST_REMEMBERED: Final = 5000
_proven: Final[dict[str, None]] = {}
"""Addresses that this process has met before, by their names in Redis."""
_OF_NO_ENVIRONMENT: Final = "inbound"
"""Where tokens count that name an environment which is not there."""
_MADE_HERE: Final = "inbound made here"
"""Where tokens count, for their environment, that lead nowhere any more but were made here."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request at an address that leads somewhere."""

    record: Record
    caller: Caller
    place: Place


def arrive(request: HttpRequest, token: str) -> Arrival:
    """Where the address with this token leads. Raises NoSuchAddress, RateLimited, ProjectSuspended."""
    environment_id = inbound_tokens.environment_of(token)
    if environment_id is None:
        raise NoSuchAddress
    token_hash = inbound_tokens.digest(token)
    name = inbound_endpoints.cache_name(token_hash)
    trip = redis_client.trip()
    known = trip.get(name)
    begun = rate_limits.begin_visit(request, trip, name)
    is_new = name not in _proven
    proof = trip.get(inbound_endpoints.proof_name(token_hash)) if is_new else None
    counters = _counters(environment_id, token) if is_new else ()
    refusals = [rate_limits.Refusals(request, trip, each) for each in counters]
    trip.run()
    if known.value == GONE:
        raise NoSuchAddress
    record = inbound_endpoints.from_bytes(known.value)
    if record is None:
        if known.value is None and (proof is None or proof.value != inbound_endpoints.PROVEN):
            for each in refusals:
                each.check()
        record = _looked_up(request, environment_id, token)
    _prove(name)
    begun.settle(record.plan, record.address_id)
    again = caller_again(record.runs_as_kind, record.runs_as_id, environment_id)
    if again is None or not again[0].may("functions:invoke"):
        raise NoSuchAddress
    caller, place = again
    place.require_active()
    return Arrival(record, caller, place)


def _counters(environment_id: str, token: str) -> Sequence[str]:
    """Where this token counts if it leads nowhere: at the first, or where its environment is not there at the last."""
    if inbound_tokens.is_ours(token):
        return (f"{_MADE_HERE}\0{environment_id}",)
    return environment_id, _OF_NO_ENVIRONMENT


def _looked_up(request: HttpRequest, environment_id: str, token: str) -> Record:
    token_hash = inbound_tokens.digest(token)
    place = place_of(environment_id)
    record = None if place is None else inbound_endpoints.look_up(place, token_hash)
    if record is None:
        _proven.pop(inbound_endpoints.cache_name(token_hash), None)
        inbound_endpoints.remember_none(token_hash)
        rate_limits.count_refused(request, _counters(environment_id, token)[-1 if place is None else 0])
        raise NoSuchAddress
    return record


def _prove(name: str) -> None:
    while len(_proven) >= _MOST_REMEMBERED:
        _proven.pop(next(iter(_proven)), None)  # the oldest; another thread may have taken it
    _proven[name] = None
