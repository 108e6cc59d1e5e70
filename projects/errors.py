from platform_site.http.errors import (
    Conflict,
    FieldError,
    Forbidden,
    NotFound,
    QuotaExceeded,
    Unavailable,
    ValidationFailed,
)
from platform_site.identity.callers import ProjectRole


class NoSuchProject(NotFound):
    """Unknown, deleted or invisible: indistinguishable."""


class NoSuchEnvironment(NotFound):
    pass


class RoleNeeded(Forbidden):
    def __init__(self, role: ProjectRole) -> None:
        owners, members = "Only owners of the project may do this.", "Viewers of the project may only read."
        super().__init__(owners if role == "owner" else members)


class BranchesQuotaReached(QuotaExceeded):
    pass


class NameTaken(ValidationFailed):
    def __init__(self) -> None:
        super().__init__(fields=[FieldError("name", "taken", "The project already has an environment with this name.")])


class NoSuchAccount(ValidationFailed):
    def __init__(self) -> None:
        message = "No account has this email. Ask them to sign up first, or ask the operator to invite them."
        super().__init__(fields=[FieldError("email", "unknown", message)])


class NotABranch(Conflict):
    message = "Only preview branches allow this. Development and production are deleted with their project."


class ApplyInProgress(Conflict):
    message = "A configuration is being applied to the environment. Try again in a moment."


class LastOwner(Conflict):
    message = "A project must have at least one owner."


class SchemaLost(Conflict):
    """The environment has no PostgreSQL schema: it is newer than the backup that its region was restored from."""

    message = (
        "The environment was lost when its region was restored from a backup that is older than the environment. "
        "Delete it, or its project, and create it again."
    )


class TablesInUse(Unavailable):
    message = "The tables of the branch are in use. Nothing was changed."
