"""Applies the part in the control database: sign-in and origins. From `begin`, which rehearses it, until `finish` or
`release`, nothing else changes these settings, so `finish` succeeds."""

from typing import Any, Final

from django.db import transaction

from accounts import audit
from accounts.audit import Actor
from accounts.models.oauth import IdentityProvider
from accounts.oauth import discovery, providers, redirects
from accounts.registration import pool_settings
from platform_site.config import credentials, current
from platform_site.config.comparison import IDENTITY
from platform_site.config.parts.changes import ChangedItem, PlanChanges, errors_at
from platform_site.config.submitted import MAX_ERRORS, ROOT, below
from platform_site.http import exact_json
from platform_site.http.errors import FieldError, Unavailable, ValidationFailed
from projects import services
from projects.directory import applying

_COPIED_FIELDS: Final = (*current.ENDPOINTS, *current.PROVIDER_FIELDS, "scopes", "response_mode")


def check(changes: PlanChanges) -> None:
    """Validates providers, without requests. Raises ValidationFailed."""
    pool_id = changes.environment.pool_id
    changed = [each for each in changes.changed_items("auth.providers") if not each.is_removed]
    known = {each.name: each for each in providers.of_pool(pool_id)} if changed else {}
    wrong = [
        below(f"{ROOT}.{each.path}", problem)
        for each in changed
        for problem in _unresolved_urls(each) or _problems(each, known.get(each.name), pool_id)
    ]
    if wrong:
        raise ValidationFailed(fields=wrong[:MAX_ERRORS])


def _unresolved_urls(each: ChangedItem) -> list[FieldError]:
    message = "The environment has no secret for this URL. Set it by the provider's own endpoint, then plan."
    return [
        FieldError(setting, "secret_missing", message)
        for setting, value in each.values.items()
        if isinstance(value, str) and credentials.REFERENCE in value
    ]


def _problems(each: ChangedItem, known: IdentityProvider | None, pool_id: str) -> list[FieldError]:
    if known is None or each.fields & IDENTITY:
        return providers.draft(pool_id, **_new_values(each, known))[1]
    return providers.problems_of_change(known, **each.values)


def discover_issuers(changes: PlanChanges) -> None:
    """Replaces new issuers by the discovered ones. Makes requests. Raises ValidationFailed."""
    document = changes.plan.document
    for each in changes.changed_items("auth.providers"):
        if "issuer" in each.values:
            with errors_at(each.path):
                each.wanted["issuer"] = discovery.check(each.wanted["issuer"], changes.environment.pool_id)
            document["auth"]["providers"][each.name]["issuer"] = each.wanted["issuer"]
    changes.plan.document_text = exact_json.dumps(document)


def begin(changes: PlanChanges) -> None:
    """Record the plan as being applied. Raises PreconditionFailed, ApplyInProgress, and the services' errors."""
    environment, plan_id = changes.environment, changes.plan.pk
    with transaction.atomic():
        applying.begin(environment.environment_id, plan_id)
        with applying.as_plan(plan_id):
            redirects.hold(environment.environment_id)
            if not environment.is_branch:
                pool_settings.hold(environment.pool_id)
                providers.hold(environment.pool_id)
            changes.require_current(in_region=False)
            with transaction.atomic():  # a rehearsal
                _change(changes)
                transaction.set_rollback(True)
            if transaction.get_rollback():  # the connection broke: Django would roll back silently
                raise Unavailable


def finish(changes: PlanChanges) -> None:
    environment_id, plan_id = changes.environment.environment_id, changes.plan.pk
    with transaction.atomic():
        if not applying.lock(environment_id, plan_id):
            return
        with applying.as_plan(plan_id):
            _change(changes)
        applying.end(environment_id, plan_id)


def _change(changes: PlanChanges) -> None:
    environment, wanted, changed, actor = changes.environment, changes.wanted, changes.paths, changes.author
    with audit.part_of_one_change():
        if "origins" in changed:
            services.change_environment(environment.environment_id, allowed_origins=wanted["origins"], actor=actor)
        auth = wanted.get("auth", {})
        if "auth.redirect_uris" in changed:
            with errors_at("auth"):
                redirects.replace(environment.environment_id, auth["redirect_uris"], actor=actor)
        settings = ("sign_up", "app_name", "app_url", "link_urls")
        if fields := {name: auth[name] for name in settings if f"auth.{name}" in changed}:
            with errors_at("auth"):
                pool_settings.change_settings(environment.pool_id, actor=actor, **fields)
        for each in changes.changed_items("auth.providers"):
            with errors_at(each.path):
                _change_provider(environment.pool_id, each, actor)


def _change_provider(pool_id: str, each: ChangedItem, actor: Actor) -> None:
    known = providers.of_pool(pool_id).filter(name=each.name).first()
    if known is not None and not each.is_removed and not each.fields & IDENTITY:
        providers.change(known, actor=actor, **each.values)
        return
    if known is not None:
        providers.remove(known, actor=actor)
    if not each.is_removed:
        providers.add(pool_id, actor=actor, **_new_values(each, known))


def _new_values(each: ChangedItem, known: IdentityProvider | None) -> dict[str, Any]:
    """Of a new provider, or of one that replaces a known one, with what that passes on. An issuer replaces the
    endpoints, and vice versa."""
    endpoints = {*current.ENDPOINTS, "profile_fields"} - {"issuer"}
    if "issuer" in each.wanted:
        replaced = endpoints
    else:
        replaced = {"issuer"} if each.wanted.keys() & endpoints else set()
    values = {name: getattr(known, name) for name in _COPIED_FIELDS if known is not None and name not in replaced}
    copied = {name: value for name, value in values.items() if value not in (None, "", [], {})}
    return {**copied, **each.values, "name": each.name, "secret_follows": True}
