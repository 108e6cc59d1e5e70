"""Tables of configuration plans, in each region's schema `platform`."""

from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from platform_site.http import exact_json
from platform_site.http.models import JSONField, public_id


class StoredPlan(models.Model):
    """What an author was shown, and may apply."""

    class State(models.TextChoices):
        OPEN = "open"
        APPLIED = "applied"
        """In the region; the control database may follow (`applying`)."""
        DONE = "done"

    id = public_id("pln")
    environment_id = models.CharField(max_length=30)
    author_kind = models.CharField(max_length=10)
    author_id = models.CharField(max_length=30)
    parts = ArrayField(models.CharField(max_length=20))
    document_text = models.TextField()
    """JSON text: the order of columns matters."""
    changes = JSONField()
    confirm = models.JSONField()
    version_in_region = models.CharField(max_length=30)
    version_in_control = models.CharField(max_length=30)
    state = models.CharField(max_length=10, choices=State.choices, default=State.OPEN)
    interruptions = models.SmallIntegerField(default=0)
    """Applies that were ended from outside before changing anything: they must not continue."""
    merge: "models.JSONField[Any, Any]" = JSONField(null=True)
    restores = models.CharField(max_length=40, null=True)
    """The `ConfigVersion` to which it goes back."""
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField()

    class Meta:
        db_table = "config_plan"
        indexes: ClassVar = [
            models.Index(fields=["environment_id", "author_id", "-created_at"], name="config_plan_of_author"),
            models.Index(fields=["expires_at"], name="config_plan_expiry"),
        ]

    def __str__(self) -> str:
        return self.pk

    @property
    def is_applied(self) -> bool:
        return self.state in (self.State.APPLIED, self.State.DONE)

    @property
    def document(self) -> dict[str, Any]:
        return dict(exact_json.loads(self.document_text))


class MergeBase(models.Model):
    """The last common state of a branch and another environment, or of a project's first two."""

    environment_id = models.CharField(max_length=30)
    """The branch. Without one, the lower id."""
    other_id = models.CharField(max_length=30, db_index=True)
    parts = JSONField()
    names = models.JSONField()
    """By environment, its schema version and names for the base's tables and columns."""

    class Meta:
        db_table = "config_merge_base"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["environment_id", "other_id"], name="config_merge_base_once")
        ]

    def __str__(self) -> str:
        return f"{self.environment_id} of {self.other_id}"


class ConfigVersion(models.Model):
    environment_id = models.CharField(max_length=30)
    version = models.CharField(max_length=30)
    schema_version = models.IntegerField()
    compressed_document = models.BinaryField()
    replaced_bases: "models.JSONField[Any, Any]" = JSONField(null=True)
    """The merge bases that the change after it replaced, by the other environment."""
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "config_version"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["environment_id", "version"], name="config_version_once")
        ]

    def __str__(self) -> str:
        return self.version
