"""Tables of `projects`, in the control database. An environment's contents are in its region."""

from typing import ClassVar, Final

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from platform_site.http.errors import ProjectSuspended
from platform_site.http.models import public_id
from projects.managers import EnvironmentQuerySet, ProjectQuerySet


class Region(models.TextChoices):
    US_EAST_1 = "us-east-1", "us-east-1"
    EU_WEST_1 = "eu-west-1", "eu-west-1"
    AP_SOUTHEAST_1 = "ap-southeast-1", "ap-southeast-1"


class Plan(models.TextChoices):
    FREE = "free"
    PRO = "pro"
    TEAM = "team"


REASON_LENGTH: Final = 500


class Project(models.Model):
    id = public_id("prj")
    name = models.CharField(max_length=64)
    region = models.CharField(max_length=20, choices=Region.choices, default=Region.US_EAST_1)
    cluster = models.CharField(max_length=40)
    """The database alias that holds the project."""
    plan = models.CharField(max_length=10, choices=Plan.choices, default=Plan.FREE)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, editable=False, related_name="created_projects"
    )
    """The account whose quota it counts against, also under another owner: a transfer could use up another account's
    quota."""
    deleted_at = models.DateTimeField(null=True, editable=False)
    """Deleted: unreachable, until a periodic job removes schemas and record."""
    suspended_at = models.DateTimeField(null=True, editable=False)
    suspension_reason = models.CharField(max_length=REASON_LENGTH, null=True, editable=False)
    resumed_at = models.DateTimeField(null=True, editable=False)
    """When the last suspension ended: expiry times start again."""
    members: "models.ManyToManyField[models.Model, Member]" = models.ManyToManyField(
        settings.AUTH_USER_MODEL, through="Member", related_name="projects"
    )

    objects = ProjectQuerySet.as_manager()

    class Meta:
        indexes: ClassVar = [
            models.Index(fields=["-created_at", "-id"], name="project_newest_first"),
            # Each worker reads these few every few seconds.
            models.Index(
                fields=["suspended_at"], name="project_by_suspension", condition=models.Q(suspended_at__isnull=False)
            ),
            models.Index(
                fields=["deleted_at"], name="project_marked_for_deletion", condition=models.Q(deleted_at__isnull=False)
            ),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(region__in=Region.values), name="project_region_is_known"),
            models.CheckConstraint(condition=models.Q(plan__in=Plan.values), name="project_plan_is_known"),
            models.CheckConstraint(condition=models.Q(name__regex=r"\S"), name="project_name_not_blank"),
            models.CheckConstraint(
                condition=models.Q(suspended_at__isnull=True, suspension_reason__isnull=True)
                | models.Q(suspended_at__isnull=False, suspension_reason__isnull=False, suspension_reason__regex=r"\S"),
                name="project_suspension_has_reason",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def state(self) -> str:
        if self.deleted_at is not None:
            return "being deleted"
        return "live" if self.suspended_at is None else "suspended"

    def listed_environments(self) -> "models.QuerySet[Environment]":
        """By name, without those that are being deleted."""
        return self.environments.exclude(status=Environment.Status.DELETING).order_by("name", "pk")

    def require_active(self) -> None:
        if self.suspended_at is not None:
            raise ProjectSuspended


class Member(models.Model):
    class Role(models.TextChoices):
        OWNER = "owner"
        DEVELOPER = "developer"
        VIEWER = "viewer"

    id = public_id("mem")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["project", "user"], name="member_once_per_project"),
            models.CheckConstraint(
                condition=models.Q(role__in=["owner", "developer", "viewer"]), name="member_role_is_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user} is {self.role} of {self.project}"


class Environment(models.Model):
    """A PostgreSQL schema of this id in the project's region."""

    class Status(models.TextChoices):
        CREATING = "creating"
        READY = "ready"
        MIGRATING = "migrating"
        FAILED = "failed"
        DELETING = "deleting"

    class Filling(models.TextChoices):
        SOURCE = "source"
        ARCHIVE = "archive"
        RESET = "reset"

    id = public_id("env")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="environments")
    name = models.CharField(max_length=48)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.CREATING)
    status_reason = models.TextField(null=True, blank=True)
    parent = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, blank=True, related_name="branches")
    filled_from = models.CharField(max_length=10, choices=Filling.choices, null=True, editable=False)
    """The source of a preview branch's rows: what a `creating` environment waits for."""
    pool_id = models.CharField(max_length=30)
    """The environment whose users sign in here: itself, or its ancestor."""
    allowed_origins = ArrayField(models.CharField(max_length=200), default=list, blank=True)
    """CORS: `["*"]` for all, else the exact origins."""
    applying_plan = models.CharField(max_length=30, null=True, editable=False)
    applying_since = models.DateTimeField(null=True, editable=False)
    """Also when a reset by a worker began."""
    expires_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = EnvironmentQuerySet.as_manager()

    class Meta:
        constraints: ClassVar = [
            # A new branch may have the name of one that is still being deleted.
            models.UniqueConstraint(
                fields=["project", "name"],
                condition=~models.Q(status="deleting"),
                name="environment_name_unique_in_project",
            )
        ]
        indexes: ClassVar = [
            # Periodic jobs read these few among very many that are ready.
            models.Index(
                fields=["status", "id"],
                name="environment_unsettled",
                condition=models.Q(status__in=["creating", "migrating", "deleting"]),
            ),
            models.Index(
                fields=["expires_at"],
                name="environment_expiry",
                condition=models.Q(expires_at__isnull=False) & ~models.Q(status="deleting"),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_branch(self) -> bool:
        return self.pool_id != self.pk


class StaffGrant(models.Model):
    id = public_id("sgr")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    environment = models.ForeignKey(Environment, on_delete=models.CASCADE, related_name="staff_grants")
    reason = models.CharField(max_length=REASON_LENGTH)
    may_write = models.BooleanField(default=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(reason__regex=r"\S"), name="staff_grant_has_reason")
        ]

    def __str__(self) -> str:
        return f"{self.user} at {self.environment_id}"


# Django looks for an app's tables here.
from projects.control_events import ControlEvent  # noqa: E402

__all__ = ["ControlEvent", "Environment", "Member", "Plan", "Project", "Region", "StaffGrant"]
