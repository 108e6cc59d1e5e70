from django.core.management.base import CommandError

from functions.execution.run_as import restore_caller
from platform_site.identity import ids
from platform_site.identity.callers import Caller, EnvironmentRef


def caller_named(caller_id: str, environment: EnvironmentRef) -> Caller:
    kinds: tuple[str, ...] = ()
    if ids.matches("key", caller_id):
        kinds = ("key",)
    elif ids.matches("usr", caller_id):
        kinds = ("user", "account")
    for kind in kinds:
        restored = restore_caller(kind, caller_id, environment.environment_id)
        if restored is not None:
            if not restored.caller.may("functions:invoke"):
                raise CommandError(f"{caller_id} may not invoke functions here.")
            return restored.caller
    raise CommandError(f"{caller_id} is not an app user, member or key that may act in this environment.")
