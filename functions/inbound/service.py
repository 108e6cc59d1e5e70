from collections.abc import Mapping
from typing import Any, Final

from django.conf import settings
from django.db import transaction

from accounts.audit import Actor
from accounts.tokens import revocation
from functions.directory import function_of
from functions.errors import ForUsersOnly, NoSuchEndpoint
from functions.execution.run_as import restore_caller
from functions.models import Function, InboundEndpoint
from functions.triggers import inbound_endpoints, inbound_tokens
from platform_site.http.errors import Forbidden, QuotaExceeded
from platform_site.identity import ids
from platform_site.identity.callers import Caller, EnvironmentRef
from rows.outbox import audit as audit_outbox

MAX_ENDPOINTS: Final = 10


def create(
    environment: EnvironmentRef, name: str, values: Mapping[str, Any], *, runs_as: Caller, actor: Caller | Actor
) -> tuple[InboundEndpoint, str]:
    """Returns the endpoint and its URL, which is not stored. `runs_as` is a key or an account. `values`: `async`, and
    optionally `label`. Raises NoSuchFunction, Forbidden, ForUsersOnly, QuotaExceeded."""
    if not runs_as.may("functions:invoke"):
        raise Forbidden("The endpoint would run the function as you: that needs functions:invoke as well.")
    token = inbound_tokens.make(environment.environment_id)
    with transaction.atomic(using=environment.cluster):
        function = function_of(environment, name, lock=True)
        if function.invoke == "user":
            raise ForUsersOnly
        if InboundEndpoint.objects.using(environment.cluster).filter(function=function).count() >= MAX_ENDPOINTS:
            raise QuotaExceeded(f"A function has at most {MAX_ENDPOINTS} inbound endpoints.")
        endpoint = InboundEndpoint.objects.using(environment.cluster).create(
            function=function,
            token_hash=inbound_tokens.digest(token),
            label=values.get("label", ""),
            is_async=values["async"],
            runs_as_kind=runs_as.kind,
            runs_as_id=runs_as.id,
        )
        endpoint.refresh_from_db(using=environment.cluster)
        _record("function.inbound_made", environment, function, endpoint, actor)
    inbound_endpoints.verify(inbound_tokens.digest(token))
    return endpoint, f"{settings.BASE_URL}/v1/inbound/{token}"


def all_of(environment: EnvironmentRef, function: Function) -> list[InboundEndpoint]:
    """The endpoints with `stopped`, oldest first."""
    found = list(
        InboundEndpoint.objects.using(environment.cluster).filter(function=function).order_by("created_at", "id")
    )
    identities = {(each.runs_as_kind, each.runs_as_id) for each in found}
    gone = {
        (kind, caller_id)
        for kind, caller_id in identities
        if restore_caller(kind, caller_id, environment.environment_id, ("functions:invoke",)) is None
    }
    for each in found:
        if (each.runs_as_kind, each.runs_as_id) in gone:
            each.stopped = Function.Stopped.CALLER_GONE.value
    return found


def revoke(environment: EnvironmentRef, name: str, endpoint_id: str, *, actor: Caller | Actor) -> None:
    """Revoke the endpoint, from the next request on. Raises NoSuchFunction, NoSuchEndpoint."""
    using = environment.cluster
    with transaction.atomic(using=using):
        function = function_of(environment, name)
        known = InboundEndpoint.objects.using(using).filter(function=function, pk=endpoint_id)
        endpoint = known.select_for_update().first() if ids.matches("inb", endpoint_id) else None
        if endpoint is None:
            raise NoSuchEndpoint("The function has no such inbound endpoint.")
        revocation.revoke(inbound_endpoints.names_of(bytes(endpoint.token_hash)), using=using)
        known.delete()
        _record("function.inbound_revoked", environment, function, endpoint, actor)


def _record(
    action: str, environment: EnvironmentRef, function: Function, endpoint: InboundEndpoint, actor: Caller | Actor
) -> None:
    audit_outbox.record(
        environment, action, actor=actor, target_id=function.pk, name=function.name, address=endpoint.pk,
        label=endpoint.label, runs_as=endpoint.runs_as_id,
    )  # fmt: skip
