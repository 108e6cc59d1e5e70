"""Resolves an inbound endpoint's token to its function and run-as identity, or to one uniform 404. A token cannot be
guessed; only the number of PostgreSQL lookups must be bounded. Unknown tokens are cached as absent and count for the
environment that they name, and a client with many of them is refused before the next lookup. This never affects real
endpoints, although providers send for many customers from one network: Redis has a verification entry for each endpoint
and, should Redis lose it, a token proves that it was created here (`inbound_tokens.is_valid`). Revoked tokens prove it
as well, so they are counted separately per environment."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.http import HttpRequest

from accounts.tokens.revocation import REVOKED
from functions.errors import NoSuchEndpoint
from functions.execution.run_as import restore_caller
from functions.triggers import inbound_endpoints, inbound_tokens
from functions.triggers.inbound_endpoints import CachedEndpoint
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.redis import client as redis_client
from platform_site.redis import rate_limits
from projects.directory.environments import environment_ref

_UNKNOWN_ENVIRONMENT: Final = "inbound"
"""Counter of tokens that name an unknown environment."""
_CREATED_HERE: Final = "inbound made here"
"""Counter, per environment, of genuine tokens whose endpoint no longer exists."""


@dataclass(frozen=True, slots=True)
class InboundRequest:
    endpoint: CachedEndpoint
    caller: Caller
    environment: EnvironmentRef


def dispatch(request: HttpRequest, token: str) -> InboundRequest:
    """Raises NoSuchEndpoint, RateLimited, ProjectSuspended."""
    environment_id = inbound_tokens.environment_of(token)
    if environment_id is None:
        raise NoSuchEndpoint
    name = inbound_endpoints.cache_key(inbound_tokens.digest(token))
    trip = redis_client.round_trip()
    cached = trip.get(name)
    limit = rate_limits.CallerLimit(request, trip, name, is_anonymous=True)
    trip.run()
    if cached.value == REVOKED:
        raise NoSuchEndpoint
    endpoint = inbound_endpoints.from_bytes(cached.value) or _look_up(request, environment_id, token)
    limit.settle(endpoint.plan, endpoint.endpoint_id)
    restored = restore_caller(endpoint.runs_as_kind, endpoint.runs_as_id, environment_id, ("functions:invoke",))
    if restored is None:
        raise NoSuchEndpoint
    restored.environment.require_active()
    return InboundRequest(endpoint, restored.caller, restored.environment)


def _look_up(request: HttpRequest, environment_id: str, token: str) -> CachedEndpoint:
    """Raises NoSuchEndpoint, and RateLimited for a client with many unknown tokens."""
    token_hash, counters = inbound_tokens.digest(token), _counters(environment_id, token)
    trip = redis_client.round_trip()
    verification = trip.get(inbound_endpoints.verification_key(token_hash))
    refusals = [rate_limits.Refusals(request, trip, each) for each in counters]
    trip.run()
    if verification.value != inbound_endpoints.VERIFIED:
        for each in refusals:
            each.check()
    environment = environment_ref(environment_id)
    endpoint = None if environment is None else inbound_endpoints.look_up(environment, token_hash)
    if endpoint is None:
        inbound_endpoints.cache_absence(token_hash)
        rate_limits.count_refused(request, counters[0] if environment is not None else counters[-1])
        raise NoSuchEndpoint
    return endpoint


def _counters(environment_id: str, token: str) -> Sequence[str]:
    """Of a token without an endpoint: the one for its environment first, the one for unknown environments last."""
    if inbound_tokens.is_valid(token):
        return (f"{_CREATED_HERE}\0{environment_id}",)
    return environment_id, _UNKNOWN_ENVIRONMENT
