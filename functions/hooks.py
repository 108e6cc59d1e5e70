"""What `functions` does when the floors below speak: follow branches and deletions."""

from typing import Any, Final

from django.db import connections

from functions import services
from platform_site.api import signals
from platform_site.api.callers import Place


def connect() -> None:
    """Called once at start."""
    signals.environment_branched.connect(follow_branch, dispatch_uid="functions.follow_branch")
    signals.environment_deleted.connect(forget_environment, dispatch_uid="functions.forget_environment")


def follow_branch(*, source: Place, target: Place, **_: Any) -> None:
    """Functions come along with all their versions; their secrets by name, unset."""
    services.copy_functions(source, target)


_FORGET: Final = (
    """DELETE FROM platform.functions_run WHERE id IN (
            SELECT id FROM platform.functions_run WHERE function_id IN (
                SELECT id FROM platform.functions_function WHERE environment_id = %(env)s) LIMIT 1000)""",
    """DELETE FROM platform.functions_secret WHERE function_id IN (
            SELECT id FROM platform.functions_function WHERE environment_id = %(env)s)""",
    """DELETE FROM platform.functions_version WHERE function_id IN (
            SELECT id FROM platform.functions_function WHERE environment_id = %(env)s)""",
    "DELETE FROM platform.functions_function WHERE environment_id = %(env)s",
)


def forget_environment(*, environment_id: str, cluster: str, **_: Any) -> None:
    """Its functions and their runs go for good; runs in batches. It may run twice."""
    for statement in _FORGET:
        while True:
            with connections[cluster].cursor() as cursor:
                cursor.execute(statement, {"env": environment_id})
                if cursor.rowcount < 1000:
                    break
