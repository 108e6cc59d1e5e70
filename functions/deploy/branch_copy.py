from typing import Any

from functions.deploy import secrets
from functions.deploy.backup import FIELDS, VERSION_FIELDS
from functions.models import Function, Secret, Version
from functions.triggers import event_subscriptions, schedules
from platform_site.identity.callers import EnvironmentRef


def copy_functions(*, source: EnvironmentRef, target: EnvironmentRef, **_: Any) -> None:
    """Copy functions with all versions, unset secrets, and stopped schedules and events, so that nothing is done
    twice."""
    using = target.cluster
    for function in Function.objects.of(source):
        names = list(Secret.objects.using(source.cluster).filter(function=function).values_list("name", flat=True))
        copy = Function.objects.using(using).create(
            environment_id=target.environment_id,
            **{field: getattr(function, field) for field in FIELDS},
            **schedules.copied(function.schedule),
            **event_subscriptions.copied(function.events),
        )
        for version in Version.objects.using(source.cluster).filter(function=function).order_by("number").iterator(50):
            Version.objects.using(using).create(
                function=copy, **{field: getattr(version, field) for field in VERSION_FIELDS}
            )
        secrets.set_names(copy, names, using)
