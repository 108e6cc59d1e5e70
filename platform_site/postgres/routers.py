from typing import Any

from django.conf import settings
from django.db.models import Model

REGION_APPS = frozenset({"rows", "webhooks", "functions", "config", "tenant"})
"""`tenant` labels models made from schema documents."""
EVERYWHERE_APPS = frozenset({"api", "request_log"})
"""Tables in every database, to share transactions or an environment's region."""


class RegionNotNamed(RuntimeError):
    """A region's table was queried without `using(environment.cluster)`: a programming error."""


class RegionRouter:
    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        if model._meta.app_label in REGION_APPS:
            instance = hints.get("instance")
            if instance is not None and instance._state.db in settings.REGION_DATABASES:
                return str(instance._state.db)
            raise RegionNotNamed(f"{model._meta.label} lives in a region: name one with using()")
        return None if model._meta.app_label in EVERYWHERE_APPS else "default"

    db_for_write = db_for_read

    def allow_relation(self, one: Model, other: Model, **hints: Any) -> bool:
        return one._state.db == other._state.db or None in (one._state.db, other._state.db)

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        if app_label in EVERYWHERE_APPS:
            return True
        return (app_label in REGION_APPS) == (db in settings.REGION_DATABASES)
