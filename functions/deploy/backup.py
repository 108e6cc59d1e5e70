"""The functions' part of a backup: all versions, names of secrets, and stopped schedules and events."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from functions.deploy import secrets
from functions.deploy import service as deploy_service
from functions.models import Function, Secret, Version
from functions.triggers import cron, event_subscriptions, schedules
from platform_site.identity.callers import EnvironmentRef
from platform_site.identity.plans import plan_limits
from rows.outbox import event_types

FIELDS: Final = ("name", "active_version", "last_version", *deploy_service.SETTINGS)
VERSION_FIELDS: Final = ("number", "source_hash", "author_kind", "author_id", "source")


class Functions:
    def dump(self, environment: EnvironmentRef) -> Mapping[str, Iterator[Mapping[str, Any]]]:
        return {"functions": self._functions(environment), "function_versions": self._versions(environment)}

    def load(self, environment: EnvironmentRef, records: Callable[[str], Iterator[Mapping[str, Any]]]) -> int:
        """Settings are cut down to the plan."""
        using = environment.cluster
        deploy_service.lock_functions(environment)
        made: dict[str, Function] = {}
        for record in records("functions"):
            deploy_service.check_function_quota(environment)
            made[record["name"]] = self._make(environment, record)
        for version in records("function_versions"):
            values = {field: version[field] for field in VERSION_FIELDS}
            Version.objects.using(using).create(function=made[version["function"]], **values)
        for name, function in made.items():
            if not function.versions.using(using).filter(number=function.active_version).exists():
                raise ValueError(f"{name} lacks its active version")
        return len(made)

    def is_empty(self, environment: EnvironmentRef) -> bool:
        return not Function.objects.of(environment).exists()

    def _functions(self, environment: EnvironmentRef) -> Iterator[Mapping[str, Any]]:
        for function in Function.objects.of(environment).order_by("name"):
            names = Secret.objects.using(environment.cluster).filter(function=function).order_by("name")
            yield {
                **{field: getattr(function, field) for field in FIELDS},
                "schedule": function.schedule,
                "on": function.events,
                "secrets": list(names.values_list("name", flat=True)),
            }

    def _versions(self, environment: EnvironmentRef) -> Iterator[Mapping[str, Any]]:
        for function in Function.objects.of(environment).order_by("name"):
            versions = Version.objects.using(environment.cluster).filter(function=function)
            # One by one: behind a pooler, where server-side cursors are unavailable, a query would load all of them.
            for number in versions.order_by("number").values_list("number", flat=True):
                version = versions.get(number=number)
                yield {"function": function.name, **{field: getattr(version, field) for field in VERSION_FIELDS}}

    def _make(self, environment: EnvironmentRef, record: Mapping[str, Any]) -> Function:
        """Raises ValueError for an invalid schedule or pattern."""
        using, plan = environment.cluster, plan_limits(environment.plan)
        values = {field: record[field] for field in FIELDS}
        values["timeout_ms"] = min(values["timeout_ms"], plan.function_timeout_ms)
        values["memory_mb"] = min(values["memory_mb"], plan.function_memory_mb)
        schedule, patterns = record["schedule"], record["on"]
        for pattern in patterns or ():
            if (problem := event_types.problem_with(pattern)) is not None:
                raise ValueError(problem)
        values |= schedules.copied(None if schedule is None else cron.normal(schedule))
        values |= event_subscriptions.copied(patterns)
        function = Function.objects.using(using).create(environment_id=environment.environment_id, **values)
        secrets.set_names(function, record["secrets"], using)
        return function
