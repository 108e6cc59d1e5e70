"""Resolves the caller of a queued run when the run starts: a key that was revoked, a user that was disabled or a member
that left in the meantime may no longer run anything."""

from dataclasses import replace

from accounts.keys import server_keys
from accounts.models import ServerKey, User
from platform_site.identity.callers import Caller, EnvironmentRef
from projects.directory import roles
from projects.directory.environments import place_for, place_of


def restore_caller(kind: str, caller_id: str, environment_id: str) -> tuple[Caller, EnvironmentRef] | None:
    """The current state of the caller, and the environment; None if it may no longer act there. At most two queries."""
    place = place_of(environment_id)
    if place is None:
        return None
    if kind in ("key", "anonymous"):
        return _key(caller_id, place)
    user = User.objects.filter(pk=caller_id, disabled_at__isnull=True).first()
    if user is None:
        return None
    if kind == "user":
        return _user(user, place)
    return _account(user, place)


def _key(key_id: str, place: EnvironmentRef) -> tuple[Caller, EnvironmentRef] | None:
    live = ServerKey.objects.live().filter(pk=key_id, environment_id=place.environment_id)
    found = live.values_list("name", "scopes", "prefix").first()
    if found is None:
        return None
    name, granted, prefix = found
    if server_keys.is_publishable(prefix):
        scopes = roles.of_publishable_key(frozenset(granted), bound_to_environment=True)
        return Caller("anonymous", key_id, scopes, plan=place.plan, place=place), place
    scopes = roles.of_key(frozenset(granted), bound_to_environment=True)
    return Caller("key", key_id, scopes, plan=place.plan, place=place, name=name), place


def _user(user: User, place: EnvironmentRef) -> tuple[Caller, EnvironmentRef] | None:
    if user.environment_id != place.pool_id:
        return None
    caller = Caller(
        "user",
        user.pk,
        roles.APP_USER,
        plan=place.plan,
        place=place,
        email=user.email,
        name=user.name,
        role=user.role,
        claims=user.claims,
    )
    return caller, place


def _account(user: User, place: EnvironmentRef) -> tuple[Caller, EnvironmentRef] | None:
    caller = Caller("account", user.pk, frozenset(), account_id=user.pk, email=user.email, name=user.name)
    found = place_for(caller, place.environment_id)
    if found is None or user.environment_id is not None:
        return None
    there, scopes = found
    return replace(caller, scopes=scopes, plan=there.plan, place=there), there
