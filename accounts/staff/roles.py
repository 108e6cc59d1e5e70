"""Staff roles of the console, each including the one before: support (sees every page, no secrets), operator (changes
things), superuser (grants roles, resets second factors). The first two are Django groups, updated after every migration
from the console's pages."""

from typing import Any, Final

from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, Permission
from django.contrib.contenttypes.models import ContentType
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
    types = ContentType.objects.get_for_models(*admin.site._registry, for_concrete_models=False)
    of_pages = models.Q(content_type__in=list(types.values()))
    label, codename = OPERATE.split(".")
    for role, permissions in (
        (StaffRole.SUPPORT, of_pages & models.Q(codename__startswith="view_")),
        (StaffRole.OPERATOR, of_pages | models.Q(content_type__app_label=label, codename=codename)),
    ):
        group, _ = Group.objects.get_or_create(name=role.value)
        group.permissions.set(Permission.objects.filter(permissions))
