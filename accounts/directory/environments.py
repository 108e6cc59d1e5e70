"""What `accounts` needs to know about environments and their projects, through a protocol. `projects` registers its
directory at start (`set_directory`); nothing here imports it."""

from typing import Any, Protocol

from django.db.models import QuerySet

from accounts.directory import locks as account_locks
from platform_site.http.errors import Forbidden
from platform_site.identity.callers import Caller, EnvironmentRef


class Directory(Protocol):
    """Questions about environments, answered by a higher layer."""

    def pool_of(self, environment_id: str) -> str | None:
        """Whose users sign in at `environment_id`: itself, or the one it branched from. None if it does not exist."""

    def place_of(self, environment_id: str) -> EnvironmentRef | None:
        """The environment without a caller's role; None if it cannot be reached."""

    def place_named(self, text: str) -> EnvironmentRef | None:
        """The place of `env_…` or of `prj_…/name`, as operators name it; None if there is none."""

    def lock_shared(self, environment_id: str) -> None:
        """Let the environment not be deleted until the control transaction at hand ends. Raises an error that is a 404
        if it has been."""

    def require_settled(self, environment_id: str) -> None:
        """Raise an error that is a 409 while a configuration is applied to the environment by another process."""

    def place_for(self, caller: Caller, environment_id: str) -> tuple[EnvironmentRef, frozenset[str]] | None:
        """The place and what `caller` may do there; None where it may not even see that the environment exists."""

    def suspended(self) -> "QuerySet[Any, str]":
        """The ids of the environments of suspended projects; to be asked within another query."""

    def suspended_projects(self) -> "QuerySet[Any, str]":
        """The ids of suspended projects; to be asked within another query."""

    def may_invite(self, project_id: str | None, account_id: str | None) -> bool:
        """Whether this account may invite members into the project (False for a deleted one). None means an
        operator."""


_directory: Directory | None = None


def set_directory(directory: Directory) -> None:
    """Called once by `projects` at start."""
    global _directory
    _directory = directory


def directory() -> Directory:
    """The registered directory. Raises RuntimeError before `projects` has started."""
    if _directory is None:
        raise RuntimeError("no directory of environments is registered: projects.apps sets it at start")
    return _directory


def active_place(environment_id: str) -> EnvironmentRef | None:
    """The place that a call without a caller means; None if it cannot be reached. One query. Raises
    ProjectSuspended."""
    place = directory().place_of(environment_id)
    if place is not None:
        place.require_active()
    return place


def own_pool(place: EnvironmentRef, things: str = "users") -> str:
    """The environment's pool, if it is its own: whose users those are, and whatever else hangs on them (`things`).
    Raises Forbidden in a preview branch, whose users are real ones."""
    if place.pool_id != place.environment_id:
        raise Forbidden(
            f"These {things} belong to {place.pool_id}, from which this environment branched. Change them there."
        )
    return place.pool_id


def lock_shared(environment_id: str | None) -> None:
    """Let the environment not be deleted until the transaction at hand ends, which writes something that names it; None
    is the platform's own. Two queries for an environment. Raises an error that is a 404 if it has been deleted."""
    if environment_id is not None:
        directory().lock_shared(environment_id)


def lock_settings(environment_id: str | None, what: str) -> None:
    """One change of these settings at a time, until the control transaction at hand ends; None is the platform's own.
    Raises an error that is a 404 if the environment has been deleted, and a 409 while a configuration is applied to
    it."""
    lock_shared(environment_id)
    account_locks.hold(f"{what} of {environment_id or 'the platform'}")
    if environment_id is not None:
        directory().require_settled(environment_id)


def require_active(environment_id: str | None) -> None:
    """Raise ProjectSuspended if that environment's project is; None, platform accounts, never are. One query for an
    environment."""
    if environment_id is not None:
        active_place(environment_id)
