"""What `accounts` needs to know about environments, as a protocol. `projects` registers its directory at start."""

from typing import Any, Protocol

from django.db.models import QuerySet

from accounts.directory import locks as account_locks
from platform_site.http.errors import Forbidden
from platform_site.identity.callers import Caller, EnvironmentRef


class Directory(Protocol):
    def environment_ref(self, environment_id: str) -> EnvironmentRef | None: ...

    def environment_ref_named(self, text: str) -> EnvironmentRef | None: ...

    def project_name(self, environment_id: str) -> str | None: ...

    def lock_shared(self, environment_id: str) -> None:
        """Prevent deletion of the environment until the control transaction ends. Raises a 404 error."""

    def require_settled(self, environment_id: str) -> None:
        """Raise a 409 error while another process applies a configuration to the environment."""

    def environment_ref_for(self, caller: Caller, environment_id: str) -> tuple[EnvironmentRef, frozenset[str]] | None:
        """The environment and the caller's scopes there; None if the caller may not see the environment."""

    def suspended(self) -> "QuerySet[Any, str]": ...

    def suspended_projects(self) -> "QuerySet[Any, str]": ...

    def may_invite(self, project_id: str | None, account_id: str | None) -> bool: ...


_directory: Directory | None = None


def set_directory(directory: Directory) -> None:
    """Called in `ready` of `projects.apps`."""
    global _directory
    _directory = directory


def directory() -> Directory:
    if _directory is None:
        raise RuntimeError("no directory of environments is registered: projects.apps sets it at start")
    return _directory


def own_pool(environment: EnvironmentRef, things: str = "users") -> str:
    """The environment's own pool. Raises Forbidden in a preview branch, whose users are its parent's."""
    if environment.is_branch:
        raise Forbidden(
            f"These {things} belong to {environment.pool_id}, from which this environment branched. Change them there."
        )
    return environment.pool_id


def require_own_pool(caller: Caller) -> None:
    """Raise Forbidden for a user who signed in to a preview branch: there, nobody changes the source's users."""
    if caller.kind == "user" and caller.environment:
        own_pool(caller.environment)


def lock_shared(environment_id: str | None) -> None:
    """Prevent deletion of the environment until the transaction ends; None is the platform. Raises a 404 error."""
    if environment_id is not None:
        directory().lock_shared(environment_id)


def lock_settings(environment_id: str | None, what: str) -> None:
    """Serialize changes of these settings until the control transaction ends; None is the platform. Raises a 404 error,
    and a 409 error while a configuration is applied."""
    lock_shared(environment_id)
    account_locks.hold(f"{what} of {environment_id or 'the platform'}")
    if environment_id is not None:
        directory().require_settled(environment_id)


def require_active(environment_id: str | None) -> None:
    """Raise ProjectSuspended if the environment's project is. None (platform accounts) never is. One query."""
    if environment_id is not None and (environment := directory().environment_ref(environment_id)) is not None:
        environment.require_active()
