"""The errors of `projects` and their HTTP responses (registered in `projects.apps`)."""

from collections.abc import Callable
from typing import Any, Final

from platform_site.http import errors, exception_handler
from platform_site.identity.callers import ProjectRole
from projects.directory.origins import NotAnOrigin


class ProjectsError(Exception):
    pass


class ApplyInProgress(errors.Conflict):
    message = "A configuration is being applied to the environment. Try again in a moment."


class NoSuchProject(ProjectsError):
    """Unknown, deleted or invisible: indistinguishable."""


class NoSuchEnvironment(ProjectsError):
    pass


class NoSuchMember(ProjectsError):
    pass


class NoSuchInvitation(ProjectsError):
    pass


class RoleNeeded(ProjectsError):
    def __init__(self, role: ProjectRole) -> None:
        self.role = role
        super().__init__(role)


class QuotaReached(ProjectsError):
    """Base class: the plan allows no more than `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(limit)


class ProjectsQuotaReached(QuotaReached):
    pass


class MembersQuotaReached(QuotaReached):
    pass


class BranchesQuotaReached(QuotaReached):
    pass


class NameTaken(ProjectsError):
    pass


class NoSuchSource(ProjectsError):
    pass


class SourceNotReady(ProjectsError):
    """The environment to branch from is being created, or failed."""


class NotResettable(ProjectsError):
    pass


class TablesInUse(ProjectsError):
    pass


class NotABranch(ProjectsError):
    pass


class NoSuchAccount(ProjectsError):
    pass


class AlreadyMember(ProjectsError):
    pass


class SchemaLost(ProjectsError):
    """The environment has no PostgreSQL schema: it is newer than the backup that its region was restored from."""

    EXPLANATION: Final = (
        "The environment was lost when its region was restored from a backup that is older than the environment. "
        "Delete it, or its project, and create it again."
    )

    def __init__(self) -> None:
        super().__init__(self.EXPLANATION)


class LastOwner(ProjectsError):
    pass


_ANSWERS: Final[dict[type[Exception], Callable[[Any], errors.ApiError]]] = {
    NoSuchProject: lambda error: errors.NotFound(),
    NoSuchEnvironment: lambda error: errors.NotFound(),
    NoSuchMember: lambda error: errors.NotFound(),
    NoSuchInvitation: lambda error: errors.NotFound(),
    RoleNeeded: lambda error: errors.Forbidden(
        "Only owners of the project may do this." if error.role == "owner" else "Viewers of the project may only read."
    ),
    ProjectsQuotaReached: lambda error: errors.QuotaExceeded(f"The plan allows {error.limit} projects per account."),
    MembersQuotaReached: lambda error: errors.QuotaExceeded(
        f"The plan allows {error.limit} members per project, including open invitations."
    ),
    BranchesQuotaReached: lambda error: errors.QuotaExceeded(
        f"The plan allows {error.limit} preview branches per project."
    ),
    NameTaken: lambda error: errors.ValidationFailed.of(
        "name", "taken", "The project already has an environment with this name."
    ),
    NoSuchSource: lambda error: errors.ValidationFailed.of("from", "unknown", "The project has no such environment."),
    SourceNotReady: lambda error: errors.Conflict("The environment to branch from is not ready."),
    NotResettable: lambda error: errors.Conflict("The branch or its parent is deleted or not ready."),
    TablesInUse: lambda error: errors.Unavailable("The tables of the branch are in use. Nothing was changed."),
    NotABranch: lambda error: errors.Conflict(
        "Only preview branches allow this. Development and production are deleted with their project."
    ),
    NoSuchAccount: lambda error: errors.ValidationFailed.of(
        "email", "unknown", "No account has this email. Ask them to sign up first, or ask the operator to invite them."
    ),
    NotAnOrigin: lambda error: errors.ValidationFailed.of("allowed_origins", "not_an_origin", str(error)),
    AlreadyMember: lambda error: errors.Conflict("The account is already a member of this project."),
    SchemaLost: lambda error: errors.Conflict(SchemaLost.EXPLANATION),
    LastOwner: lambda error: errors.Conflict("A project must have at least one owner."),
}


def register_answers() -> None:
    for error, answer in _ANSWERS.items():
        exception_handler.register(error, answer)
