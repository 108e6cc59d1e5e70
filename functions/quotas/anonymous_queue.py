from datetime import timedelta
from typing import Final

from functions.errors import TooManyQueued
from functions.quotas.client_networks import AnonymousCall
from functions.quotas.slots import has_share
from platform_site.identity.callers import EnvironmentRef
from platform_site.identity.plans import plan_limits
from platform_site.postgres import statements

SPACING: Final = timedelta(seconds=10)
"""The distance of queued runs of one network: about the duration of one at the longest timeout, so that a new network
waits behind one or two runs of each other network."""

_WHOSE: Final = "queued runs for publishable keys"
_WHY_NO_MORE: Final = "Half of that is waiting, some from your network."
_WAITING: Final = """
SELECT count(*), coalesce(sum(octet_length(input)), 0), count(*) FILTER (WHERE network = %s)
  FROM (SELECT input, network FROM platform.functions_run
         WHERE phase = 'queued' AND environment_id = %s AND (caller_kind = 'anonymous' OR trigger = 'event')
           AND caller_kind = 'anonymous'
         ORDER BY coalesce(turn_at, created_at) LIMIT %s) few
"""


def waiting(environment: EnvironmentRef) -> tuple[int, int]:
    """The number of queued runs of anonymous callers, and the bytes of their inputs."""
    count, size, _ = _count(environment)
    return count, size


def admit(environment: EnvironmentRef, anonymous: AnonymousCall | None, input_size: int) -> timedelta:
    """The delay of a new run. Concurrent calls may exceed the limits together. Raises TooManyQueued."""
    limits = plan_limits(environment.plan)
    most, most_bytes = limits.visitor_queued_runs, limits.visitor_queued_bytes
    count, size, own = _count(environment, None if anonymous is None else anonymous.network)
    if not has_share(most, count, own):
        raise TooManyQueued(f"{most:,}", _WHOSE, _WHY_NO_MORE if count < most else "That many are waiting.")
    size += input_size
    if size > (most_bytes // 2 if own else most_bytes):
        limit = f"{most_bytes:,} bytes of input in"
        raise TooManyQueued(limit, _WHOSE, _WHY_NO_MORE if size <= most_bytes else "That many are waiting.")
    return own * SPACING


def _count(environment: EnvironmentRef, network: int | None = None) -> tuple[int, int, int]:
    """As `waiting`, and how many of the runs are this network's."""
    most = plan_limits(environment.plan).visitor_queued_runs
    count, size, own = statements.row(environment.cluster, _WAITING, [network, environment.environment_id, most])
    return int(count), int(size), int(own)
