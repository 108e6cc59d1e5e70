"""The functions' part of a backup (`rows.backups`): all versions, and secrets by name, whose values stay behind."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from functions import services
from functions.models import Function, Secret, Version
from platform_site.api.callers import Place
from platform_site.api.plans import plan_limits

_FIELDS: Final = (
    "name", "active_version", "last_version", "timeout_ms", "memory_mb", "allowed_hosts", "invoke", "attempts",
)  # fmt: skip
_VERSION_FIELDS: Final = ("number", "source", "source_hash", "author_kind", "author_id")


class Functions:
    """Implements `rows.backups.Part`."""

    def dump(self, place: Place) -> Iterator[Mapping[str, Any]]:
        using = place.cluster
        for function in self._all(place).order_by("name"):
            versions = Version.objects.using(using).filter(function=function).order_by("number")
            secrets = Secret.objects.using(using).filter(function=function).order_by("name")
            yield {
                **{field: getattr(function, field) for field in _FIELDS},
                "versions": [{field: getattr(each, field) for field in _VERSION_FIELDS} for each in versions],
                "secrets": list(secrets.values_list("name", flat=True)),
            }

    def load(self, place: Place, records: Iterable[Mapping[str, Any]]) -> int:
        """Settings that the plan does not allow are cut down to it."""
        using, plan = place.cluster, plan_limits(place.plan)
        count = 0
        for record in records:
            services.make_room(place, 1)
            values = {field: record[field] for field in _FIELDS}
            values["timeout_ms"] = min(values["timeout_ms"], plan.function_timeout_ms)
            values["memory_mb"] = min(values["memory_mb"], plan.function_memory_mb)
            function = Function.objects.using(using).create(environment_id=place.environment_id, **values)
            for version in record["versions"]:
                Version.objects.using(using).create(
                    function=function, **{field: version[field] for field in _VERSION_FIELDS}
                )
            Secret.objects.using(using).bulk_create(
                Secret(function=function, name=name, sealed_value=None) for name in record["secrets"]
            )
            count += 1
        return count

    def is_empty(self, place: Place) -> bool:
        return not self._all(place).exists()

    def _all(self, place: Place) -> Any:
        return Function.objects.using(place.cluster).filter(environment_id=place.environment_id)
