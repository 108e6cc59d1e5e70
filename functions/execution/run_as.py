"""Resolves the caller of a run that is queued or lasts: it may have lost its permissions in the meantime."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from accounts.keys import server_keys
from accounts.models import ServerKey, User
from platform_site.identity.callers import Caller, EnvironmentRef
from projects.directory import roles
from projects.directory.environments import environment_ref, environment_ref_for


class RestoredCaller(NamedTuple):
    caller: Caller
    environment: EnvironmentRef


def restore_caller(kind: str, caller_id: str, environment_id: str, needed: Iterable[str] = ()) -> RestoredCaller | None:
    """None if it may no longer act there, or lacks one of the scopes `needed`. At most two queries."""
    environment = environment_ref(environment_id)
    caller = None if environment is None else _find(kind, caller_id, environment)
    if caller is None or caller.environment is None or not all(map(caller.may, needed)):
        return None
    return RestoredCaller(caller, caller.environment)


def _find(kind: str, caller_id: str, environment: EnvironmentRef) -> Caller | None:
    if kind in ("key", "anonymous"):
        return _key(caller_id, environment)
    user = User.objects.filter(pk=caller_id, disabled_at__isnull=True).first()
    if user is None or user.environment_id != (environment.pool_id if kind == "user" else None):
        return None
    if kind == "user":
        return Caller(
            "user",
            user.pk,
            roles.APP_USER,
            plan=environment.plan,
            environment=environment,
            email=user.email,
            name=user.name,
            role=user.role,
            claims=user.claims,
        )
    caller = Caller("account", user.pk, frozenset(), account_id=user.pk, email=user.email, name=user.name)
    found = environment_ref_for(caller, environment.environment_id)
    if found is None:
        return None
    with_role, scopes = found
    return replace(caller, scopes=scopes, plan=with_role.plan, environment=with_role)


def _key(key_id: str, environment: EnvironmentRef) -> Caller | None:
    live = ServerKey.objects.live().filter(pk=key_id, environment_id=environment.environment_id)
    found = live.values_list("name", "scopes", "prefix").first()
    if found is None:
        return None
    name, granted, prefix = found
    if server_keys.is_publishable(prefix):
        scopes = roles.of_publishable_key(frozenset(granted), bound_to_environment=True)
        return Caller("anonymous", key_id, scopes, plan=environment.plan, environment=environment)
    scopes = roles.of_key(frozenset(granted), bound_to_environment=True)
    return Caller("key", key_id, scopes, plan=environment.plan, environment=environment, name=name)
