"""What `functions` does when the floors below speak: follow branches and deletions."""

from typing import Any

from functions.deploy import deletion as function_deletion
from functions.deploy import service as deploy_service
from functions.triggers import events as event_triggers
from platform_site.identity import signals
from platform_site.identity.callers import Place


def connect() -> None:
    """Called once at start."""
    signals.environment_branched.connect(follow_branch, dispatch_uid="functions.follow_branch")
    signals.environment_deleted.connect(forget_environment, dispatch_uid="functions.forget_environment")


def follow_branch(*, source: Place, target: Place, **_: Any) -> None:
    """Functions come along with all their versions; their secrets by name, unset."""
    deploy_service.copy_functions(source, target)


def forget_environment(*, environment_id: str, cluster: str, **_: Any) -> None:
    """Its functions go for good, and their runs as far as `functions.deploy.deletion` goes at once. It may run twice.

    What a relay hears at this very moment is left behind, and found by `projects.provisioning.orphaned_rows`.
    """
    function_deletion.begin_all(cluster, environment_id)
    event_triggers.forget_environment(environment_id, cluster)
