"""Staff roles of the console, each including the one before: support (sees every page, no secrets), operator (changes
things), superuser (grants roles, resets second factors). The first two are Django groups, updated after every migration
from the console's pages."""

from collections.abc import Sequence
from typing import Any, Final

from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, Permission
from django.db import DEFAULT_DB_ALIAS, models, transaction

from accounts import audit
from accounts.audit import Actor
from accounts.models import User
from accounts.oauth import identities
from accounts.users import service as user_service
from platform_site.http.errors import ValidationFailed

OPERATE: Final = "staff.operate"
MANAGE_STAFF: Final = "staff.manage_staff"


class StaffRole(models.TextChoices):
    SUPPORT = "support"
    OPERATOR = "operator"
    SUPERUSER = "superuser"


def role_of(user: User) -> StaffRole | None:
    if not user.is_staff:
        return None
    if user.is_superuser:
        return StaffRole.SUPERUSER
    names = set(user.groups.values_list("name", flat=True))
    return StaffRole.OPERATOR if StaffRole.OPERATOR.value in names else StaffRole.SUPPORT


def set_role(user: User, role: StaffRole | None, *, actor: Actor) -> User:
    """Set or remove (None) a platform account's role, from its next request on. Who becomes staff loses linked
    identities. Raises NotFound, ValidationFailed (an application's user, or one's own role), Conflict (the last
    superuser)."""
    if actor.id == user.pk:
        raise ValidationFailed.of("role", "own_role", "You cannot change your own role. Ask another superuser.")
    with transaction.atomic():
        if role != StaffRole.SUPERUSER:
            user_service.keep_one_superuser(user.pk)
        locked = user_service.lock_user(user.pk)
        if locked.environment_id is not None:
            raise ValidationFailed.of("user", "not_an_account", "Users of applications cannot be staff.")
        before = role_of(locked)
        if before == role:
            return locked
        locked.is_staff, locked.is_superuser = role is not None, role == StaffRole.SUPERUSER
        locked.save(update_fields=["is_staff", "is_superuser"])
        is_grouped = role is not None and role != StaffRole.SUPERUSER
        if before is None:  # an operator may have linked them, by a provider of their own
            identities.unlink_all(locked, actor=actor)
        locked.groups.set(Group.objects.filter(name=role) if is_grouped else [])
        audit.record(
            "user.staff_role_changed",
            locked,
            actor=actor,
            before=before.value if before else None,
            after=role.value if role else None,
        )
    return locked


def sync_after_migrate(*, app_config: Any, using: str = DEFAULT_DB_ALIAS, **_: Any) -> None:
    if using == DEFAULT_DB_ALIAS and app_config is list(apps.get_app_configs())[-1]:
        sync_groups()


def sync_groups() -> None:
    models_shown = [model._meta for model in admin.site._registry]
    view = [f"{meta.app_label}.view_{meta.model_name}" for meta in models_shown]
    edit = [
        f"{meta.app_label}.{verb}_{meta.model_name}" for meta in models_shown for verb in ("add", "change", "delete")
    ]
    _set_permissions(StaffRole.SUPPORT, view)
    _set_permissions(StaffRole.OPERATOR, [*view, *edit, OPERATE])


def _set_permissions(role: StaffRole, permissions: Sequence[str]) -> None:
    group, _ = Group.objects.get_or_create(name=role.value)
    found = Permission.objects.filter(codename__in={each.partition(".")[2] for each in permissions}).values_list(
        "pk", "content_type__app_label", "codename"
    )
    wanted = {pk for pk, label, codename in found if f"{label}.{codename}" in permissions}
    held = set(group.permissions.values_list("pk", flat=True))
    if wanted != held:
        group.permissions.set(wanted)
