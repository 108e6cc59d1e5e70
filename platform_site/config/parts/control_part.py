"""Applies the part in the control database: sign-in and origins. From `begin`, which rehearses it, until `finish` or
`release`, nothing else changes these settings, so `finish` succeeds."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.db import transaction

from accounts import audit
from accounts.audit import Actor
from accounts.models.oauth import IdentityProvider
from accounts.oauth import discovery, providers, redirects
from accounts.registration import pool_settings
from platform_site.config import credentials, current
from platform_site.config.comparison import IDENTITY
from platform_site.config.parts import touched
from platform_site.config.parts.region_part import Changes
from platform_site.config.parts.touched import Touched, errors_at
from platform_site.config.submitted import ROOT, Submitted
from platform_site.http.errors import FieldError, PreconditionFailed, Unavailable
from platform_site.identity.callers import Caller, EnvironmentRef
from projects import services
from projects.directory import applying

_KEPT: Final = (
    "display_name", "client_id", "client_auth", "scopes", "trusts_email", "sign_up", "enabled", "issuer",
    "authorization_endpoint", "token_endpoint", "userinfo_endpoint", "emails_endpoint", "profile_fields",
    "response_mode",
)  # fmt: skip


def unresolved_urls(wanted: Submitted, changes: Changes) -> list[FieldError]:
    providers = wanted.parts.get("auth", {}).get("providers", {})
    message = "The environment has no secret for this URL. Set it by the provider's own endpoint, then plan."
    return [
        FieldError(f"{ROOT}.auth.providers.{name}.{setting}", "secret_missing", message)
        for name, each in touched.items(changes, "auth.providers.").items()
        if not each.is_removed
        for setting, value in each.values(providers[name]).items()
        if isinstance(value, str) and credentials.REFERENCE in value
    ]


def checked(
    environment: EnvironmentRef, document: dict[str, Any], wanted: Submitted, changes: Changes
) -> dict[str, Any]:
    """The document with discovered issuers, also set in `wanted`. Makes requests. Raises ValidationFailed."""
    for name, each in touched.items(changes, "auth.providers.").items():
        item = {} if each.is_removed else wanted.parts["auth"]["providers"][name]
        if "issuer" in item and each.has_new("issuer"):
            with errors_at(f"auth.providers.{name}"):
                item["issuer"] = discovery.check(item["issuer"], environment.pool_id)
            document["auth"]["providers"][name]["issuer"] = item["issuer"]
    return document


def begin(
    environment: EnvironmentRef,
    plan_id: str,
    wanted: Submitted,
    changes: Changes,
    *,
    is_current: Callable[[], bool],
    actor: Caller,
) -> None:
    """Record the plan as being applied; `is_current()` is checked under the locks. Raises PreconditionFailed,
    ApplyInProgress, and the services' errors."""
    with transaction.atomic():
        applying.begin(environment.environment_id, plan_id)
        with applying.as_plan(plan_id):
            redirects.hold(environment.environment_id)
            if environment.pool_id == environment.environment_id:
                pool_settings.hold(environment.pool_id)
                providers.hold(environment.pool_id)
            if not is_current():
                raise PreconditionFailed("The environment changed since the plan. Plan again.")
            try:
                with transaction.atomic():
                    _change(environment, wanted, changes, actor)
                    raise _RehearsedError
            except _RehearsedError:
                if transaction.get_rollback():  # the connection broke, and Django would roll back without a word
                    raise Unavailable from None


class _RehearsedError(Exception):
    pass


def finish(
    environment: EnvironmentRef, plan_id: str, wanted: Submitted, changes: Changes, *, actor: Caller | Actor
) -> None:
    with transaction.atomic():
        if not applying.lock(environment.environment_id, plan_id):
            return
        with applying.as_plan(plan_id):
            _change(environment, wanted, changes, actor)
        applying.end(environment.environment_id, plan_id)


def _change(environment: EnvironmentRef, wanted: Submitted, changes: Changes, actor: Caller | Actor) -> None:
    changed = touched.paths(changes)
    with audit.part_of_one_change():
        if "origins" in changed:
            services.change_environment(
                environment.environment_id, allowed_origins=wanted.parts["origins"], actor=actor
            )
        auth = wanted.parts.get("auth", {})
        if "auth.redirect_uris" in changed:
            with errors_at("auth"):
                redirects.replace(environment.environment_id, auth["redirect_uris"], actor=actor)
        fields = {name: auth[name] for name in ("sign_up", "app_name", "app_url", "link_urls") if name in auth}
        if changed & {f"auth.{name}" for name in fields}:
            with errors_at("auth"):
                pool_settings.change_settings(environment.pool_id, actor=actor, **fields)
        for name, each in sorted(touched.items(changes, "auth.providers.").items()):
            with errors_at(f"auth.providers.{name}"):
                _change_provider(environment.pool_id, name, each, auth.get("providers", {}).get(name, {}), actor)


def _change_provider(pool_id: str, name: str, each: Touched, item: Mapping[str, Any], actor: Caller | Actor) -> None:
    known = providers.of_pool(pool_id).filter(name=name).first()
    if known is None:
        providers.add(pool_id, name=name, actor=actor, secret_follows=True, **item)
        return
    if each.is_removed:
        providers.remove(known, actor=actor)
    elif each.fields & IDENTITY:
        providers.remove(known, actor=actor)
        providers.add(pool_id, name=name, actor=actor, secret_follows=True, **{**_kept(known, item), **item})
    else:
        providers.change(known, actor=actor, **each.values(item))


def _kept(provider: IdentityProvider, item: Mapping[str, Any]) -> dict[str, Any]:
    """An issuer replaces endpoints, and vice versa."""
    endpoints = {*current.ENDPOINTS, "profile_fields"} - {"issuer"}
    if "issuer" in item:
        replaced = endpoints
    else:
        replaced = {"issuer"} if item.keys() & endpoints else set()
    values = {name: getattr(provider, name) for name in _KEPT if name not in replaced}
    return {name: value for name, value in values.items() if value not in (None, "", [], {})}
