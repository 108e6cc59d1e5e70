"""Which functions exist, for the request log."""

from collections.abc import Collection

from functions.models import Function


def existing_functions(using: str, pairs: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """The existing functions among pairs of environment id and name. One query."""
    found = Function.objects.using(using).filter(
        environment_id__in={environment_id for environment_id, _ in pairs}, name__in={name for _, name in pairs}
    )
    return {
        (environment_id, name)
        for environment_id, name in found.values_list("environment_id", "name")
        if environment_id is not None and (environment_id, name) in pairs
    }
