"""Grants: staff access to one environment of `/console`, with a reason, in the project's audit log, for LIFETIME,
read-only by default. Owners, the holder and operators can revoke it. Only the console's own API calls can use one
(`developer_console.api_calls`)."""

from dataclasses import replace
from datetime import timedelta
from typing import Final

from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from accounts import audit
from accounts.audit import Actor
from accounts.models import User
from accounts.staff.roles import OPERATE
from platform_site.http.errors import Forbidden, NotFound, Unauthorized, ValidationFailed
from platform_site.identity import ids
from platform_site.identity.callers import Caller
from projects.directory import roles
from projects.directory.environments import environment_ref
from projects.models import REASON_LENGTH, Environment, StaffGrant

LIFETIME: Final = timedelta(hours=1)
ATTRIBUTE: Final = "staff_grant_id"
READ: Final = roles.BY_ROLE["viewer"] | {"logs:read"}
WRITE: Final = READ | {"rows:write", "schema:write"}
"""Without what outlives a grant: keys, users, code, webhook URLs, members."""
_RETENTION: Final = timedelta(days=30)


def grant(user: User, environment_id: str, *, reason: str, may_write: bool) -> StaffGrant:
    """Raises NotFound, Forbidden, ValidationFailed on the field `reason`."""
    reason = checked_reason(reason)
    if not user.is_staff:
        raise Forbidden
    if may_write and not user.has_perm(OPERATE):
        raise Forbidden("Only operators can get write access.")
    found = Environment.objects.reachable().filter(pk=environment_id) if ids.matches("env", environment_id) else None
    environment = found.first() if found is not None else None
    if environment is None:
        raise NotFound("There is no such environment.")
    with transaction.atomic():
        StaffGrant.objects.filter(user=user, expires_at__lt=Now() - _RETENTION).delete()
        _revoke(active().filter(user=user, environment=environment), Actor.staff(user))
        made = StaffGrant.objects.create(
            user=user, environment=environment, reason=reason, may_write=may_write, expires_at=Now() + LIFETIME
        )
        made.refresh_from_db(fields=["expires_at"])
        audit.record(
            "staff_access.granted",
            made,
            actor=Actor.staff(user),
            project_id=environment.project_id,
            reason=reason,
            may_write=may_write,
            expires_at=made.expires_at.isoformat(),
        )
    return made


def checked_reason(text: str) -> str:
    reason = text.strip()
    if not reason or len(reason) > REASON_LENGTH or not reason.isprintable():
        message = f"The reason must be 1 to {REASON_LENGTH} printable characters, on one line."
        raise ValidationFailed.of("reason", "invalid", message)
    return reason


def active() -> "QuerySet[StaffGrant]":
    return StaffGrant.objects.filter(
        Q(may_write=False) | Q(user__is_superuser=True) | Q(user__groups__permissions__codename=OPERATE.split(".")[1]),
        expires_at__gt=Now(),
        revoked_at=None,
        user__is_staff=True,
        user__disabled_at=None,
    ).distinct()


def active_for(user_id: str, environment_id: str) -> StaffGrant | None:
    return active().filter(user_id=user_id, environment_id=environment_id).order_by("-created_at").first()


def revoke(grant_id: str, *, actor: Caller | Actor, project_id: str | None = None) -> None:
    """End a grant (of `project_id`, if given). The caller checks access. Raises NotFound."""
    found = active().filter(pk=grant_id if ids.matches("sgr", grant_id) else "")
    with transaction.atomic():
        if not _revoke(found.filter(environment__project_id=project_id) if project_id else found, actor):
            raise NotFound("There is no such staff access, or it has ended.")


def _revoke(grants: "QuerySet[StaffGrant]", actor: Caller | Actor) -> int:
    found = list(grants.select_related("environment"))
    ended = 0
    for each in found:
        if StaffGrant.objects.filter(pk=each.pk, revoked_at=None).update(revoked_at=Now()):
            ended += 1
            audit.record("staff_access.revoked", each, actor=actor, project_id=each.environment.project_id)
    return ended


def caller_with(account: Caller, grant_id: str, named: str | None, *, needs_environment: bool) -> Caller:
    """The caller for an account with this grant. Two queries. Raises Unauthorized (ended), NotFound (another
    environment, or one that cannot be reached), and with `needs_environment` ProjectSuspended."""
    found = active().filter(pk=grant_id, user_id=account.id).first()
    environment = environment_ref(found.environment_id) if found is not None else None
    if found is None:
        raise Unauthorized("The staff access has ended.")
    if environment is None:  # it is deleted, or a branch that is being reset
        raise NotFound("The environment does not exist, or cannot be reached at the moment.")
    if named not in (None, environment.environment_id):
        raise NotFound("The staff access is for another environment.")
    if needs_environment:
        environment.require_active()
    return Caller(
        kind="staff",
        id=account.id,
        scopes=WRITE if found.may_write else READ,
        plan=environment.plan,
        environment=replace(environment, role="developer" if found.may_write else "viewer"),
        session_id=account.session_id,
        email=account.email,
        name=account.name,
    )
