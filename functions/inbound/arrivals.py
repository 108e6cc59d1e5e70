"""Who comes by an inbound address: the function that it leads to, and as whom it runs, or the one refusal.

One trip to Redis fetches what is remembered of the address and raises the counter of this address and client; where
nothing is remembered, PostgreSQL is asked for the environment and in its region for the address. As whom the function
runs is looked up each time (`functions.callers`), so what its maker may not do any more the address does not do either.

Unknown, revoked and stopped addresses get the same 404. Tokens that cannot be, and those that no process has met, count
as refused, as keys do (`projects.callers`): who guesses is stopped before PostgreSQL is asked. Those of a real
environment count for it alone, so that what a provider sends to one customer's revoked address keeps nobody else out.
"""

from dataclasses import dataclass
from typing import Final

from django.http import HttpRequest

from accounts.markers import GONE
from functions.callers import caller_again
from functions.errors import NoSuchAddress
from functions.inbound import records, tokens
from functions.inbound.records import Record
from platform_site.api import limits, store
from platform_site.api.callers import Caller, Place
from projects.environments import place_of

_MOST_REMEMBERED: Final = 5000
_proven: Final[dict[str, None]] = {}
"""Addresses that this process has met before, by their names in Redis."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request at an address that leads somewhere."""

    record: Record
    caller: Caller
    place: Place


def arrive(request: HttpRequest, token: str) -> Arrival:
    """Where the address with this token leads. Raises NoSuchAddress, RateLimited, ProjectSuspended."""
    environment_id = tokens.environment_of(token)
    if environment_id is None:
        limits.count_refused(request)
        raise NoSuchAddress
    token_hash = tokens.digest(token)
    name = records.cache_name(token_hash)
    trip = store.trip()
    known = trip.get(name)
    begun = limits.begin_visit(request, trip, name)
    guesses = [] if name in _proven else [limits.Refusals(request, trip, each) for each in ("", environment_id)]
    trip.run()
    if known.value == GONE:
        raise NoSuchAddress
    record = records.from_bytes(known.value)
    if record is None:
        if known.value is None:
            for each in guesses:
                each.check()
        record = _looked_up(request, environment_id, token_hash)
    _prove(name)
    begun.settle(record.plan, record.address_id)
    again = caller_again(record.runs_as_kind, record.runs_as_id, environment_id)
    if again is None or not again[0].may("functions:invoke"):
        raise NoSuchAddress
    caller, place = again
    place.require_active()
    return Arrival(record, caller, place)


def _looked_up(request: HttpRequest, environment_id: str, token_hash: bytes) -> Record:
    place = place_of(environment_id)
    record = None if place is None else records.look_up(place, token_hash)
    if record is None:
        limits.count_refused(request, "" if place is None else environment_id)
        raise NoSuchAddress
    return record


def _prove(name: str) -> None:
    while len(_proven) >= _MOST_REMEMBERED:
        _proven.pop(next(iter(_proven)), None)  # the oldest; another thread may have taken it
    _proven[name] = None
