import zlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from django.db.models import QuerySet, Subquery
from django.db.models.functions import Now

from platform_site.config import current
from platform_site.config.models import ConfigVersion
from platform_site.http import exact_json
from platform_site.http.errors import NotFound, ValidationFailed, first_or
from platform_site.identity.callers import EnvironmentRef
from rows.migrate import versions as schema_versions

MAX_VERSIONS: Final = 20


def store(environment: EnvironmentRef, now: current.Parts, replaced_bases: Mapping[str, Any]) -> None:
    """Store the configuration before a change, in the transaction of the change, with the merge bases that the change
    replaces. Does nothing if its sources are too large for a document."""
    try:
        document = current.with_sources(environment, now)
    except ValidationFailed:
        return
    ConfigVersion.objects.using(environment.cluster).update_or_create(
        environment_id=environment.environment_id,
        version=current.version_of(now),
        defaults={
            "schema_version": schema_versions.current(environment).version,
            "compressed_document": zlib.compress(exact_json.dumps(document).encode()),
            "replaced_bases": replaced_bases or None,
            "created_at": Now(),
        },
    )
    own = _newest_first(environment)
    surplus = own.values_list("pk", flat=True)[MAX_VERSIONS:]
    own.filter(pk__in=list(surplus)).delete()


def _newest_first(environment: EnvironmentRef) -> QuerySet[ConfigVersion]:
    own = ConfigVersion.objects.using(environment.cluster).filter(environment_id=environment.environment_id)
    return own.order_by("-created_at", "-pk")


def stored_in(environment: EnvironmentRef) -> list[tuple[str, datetime, int]]:
    """Version, time and schema version of each, the newest first."""
    return list(_newest_first(environment).values_list("version", "created_at", "schema_version"))


def bases_of(environment: EnvironmentRef, version: str | None) -> dict[str, Any]:
    """The merge bases when `version` was current, as far as changes since then replaced them."""
    own = _newest_first(environment)
    since = own.filter(version=version).values("created_at")
    changes = own.filter(created_at__gte=Subquery(since))
    bases: dict[str, Any] = {}
    for replaced in changes.exclude(replaced_bases=None).values_list("replaced_bases", flat=True):
        bases |= replaced
    return bases


def document_of(environment: EnvironmentRef, version: str) -> dict[str, Any]:
    """The document that restores it, renames included. Raises NotFound."""
    not_found = NotFound("The environment has no stored configuration of this version.")
    stored = first_or(_newest_first(environment).filter(version=version), not_found)
    document: dict[str, Any] = exact_json.loads(zlib.decompress(stored.compressed_document))
    if "schema" in document:
        document["schema"] = schema_versions.document_to_revert_to(environment, stored.schema_version)
    return document
