from collections.abc import Mapping
from typing import Any

from platform_site.http.errors import Unavailable
from platform_site.identity.callers import Caller, EnvironmentRef
from rows.changes import stream_counts, watched_tables
from rows.changes.credentials import SharedCredential
from rows.changes.feed import feed_of, is_ending
from rows.changes.positions import seal_of
from rows.changes.streams import Stream
from rows.changes.subscriptions import compile_subscriptions, read_subscriptions
from rows.rules.principal import Principal


def open_stream(
    environment: EnvironmentRef,
    caller: Caller,
    body: Mapping[str, Any],
    last_id: str | None,
    network: str,
    credential: SharedCredential,
) -> Stream:
    """`credential` has just authenticated `caller` in a request to `environment`. Raises ValidationFailed naming the
    subscription or `Last-Event-ID`, NotFound (a table that the caller cannot read), RateLimited (too many streams), and
    Unavailable if this process is about to end."""
    if is_ending():
        raise Unavailable
    caller = credential.shared_caller(caller)
    if caller.environment == environment:
        environment = caller.environment  # the same object, which saves memory
    subscriptions = read_subscriptions(body)
    principal = Principal.of(caller)
    compiled = compile_subscriptions(environment, principal, subscriptions)
    seal = seal_of(environment, caller, principal, body["subscriptions"])
    position = None if last_id is None else seal.read(last_id)
    stream = Stream(
        environment=environment, caller=caller, principal=principal, subscriptions=subscriptions, compiled=compiled,
        credential=credential, seal=seal, position=position,
        network=network if caller.kind == "anonymous" else None, must_relist=last_id is not None,
    )  # fmt: skip
    stream_counts.add(stream)
    try:
        watched_tables.watch(environment, stream.tables)
        feed_of(environment.cluster).add(stream)
    except BaseException:
        stream_counts.remove([stream])
        raise
    return stream
