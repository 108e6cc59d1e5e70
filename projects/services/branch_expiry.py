"""Preview branches with `expires_at`: a periodic job deletes them after that time. Design: configuration, branches."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.db.models.functions import Now

from accounts import audit
from platform_site.identity.callers import Caller
from projects import services
from projects.errors import NoSuchEnvironment, NoSuchProject
from projects.models import Environment

LONGEST: Final = timedelta(days=365)


def set_expiry(environment_id: str, expires_at: datetime | None, *, actor: Caller) -> None:
    """Change when a preview branch is deleted; None: never. Raises NoSuchEnvironment."""
    with transaction.atomic():
        branch = Environment.objects.live().branches().select_for_update(no_key=True).filter(pk=environment_id).first()
        if branch is None:
            raise NoSuchEnvironment
        if branch.expires_at == expires_at:
            return
        branch.expires_at = expires_at
        branch.save(update_fields=["expires_at"])
        audit.record(
            "environment.changed",
            actor=actor,
            target_id=environment_id,
            project_id=branch.project_id,
            environment_id=environment_id,
            expires_at=expires_at and expires_at.isoformat(),
        )


def delete_expired() -> Iterator[str]:
    """Delete the branches whose time has come, and yield their ids."""
    expired = Environment.objects.live().branches().filter(expires_at__lte=Now()).order_by("expires_at", "pk")
    for environment_id, project_id in list(expired.values_list("pk", "project_id")[:1000]):
        try:
            services.delete_environment(project_id, environment_id, actor=audit.SYSTEM)
        except (NoSuchEnvironment, NoSuchProject):  # deleted meanwhile
            continue
        yield environment_id
