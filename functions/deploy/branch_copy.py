"""Copies the functions of an environment to a preview branch."""

from functions.models import Function, Secret, Version
from functions.triggers import event_subscriptions, schedules
from platform_site.identity.callers import EnvironmentRef


def copy_functions(source: EnvironmentRef, target: EnvironmentRef) -> None:
    """Copy functions with all versions, unset secrets, and stopped schedules and events, so that nothing is done
    twice."""
    using = target.cluster
    for function in Function.objects.using(source.cluster).filter(environment_id=source.environment_id):
        names = list(Secret.objects.using(source.cluster).filter(function=function).values_list("name", flat=True))
        copy = Function.objects.using(using).create(
            environment_id=target.environment_id,
            name=function.name,
            active_version=function.active_version,
            last_version=function.last_version,
            timeout_ms=function.timeout_ms,
            memory_mb=function.memory_mb,
            allowed_hosts=function.allowed_hosts,
            invoke=function.invoke,
            attempts=function.attempts,
            **schedules.copied(function.schedule),
            **event_subscriptions.copied(function.events),
        )
        for version in Version.objects.using(source.cluster).filter(function=function).order_by("number").iterator(50):
            Version.objects.using(using).create(
                function=copy,
                number=version.number,
                source=version.source,
                source_hash=version.source_hash,
                author_kind=version.author_kind,
                author_id=version.author_id,
            )
        Secret.objects.using(using).bulk_create(Secret(function=copy, name=name, sealed_value=None) for name in names)
