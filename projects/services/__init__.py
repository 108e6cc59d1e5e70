"""The services of projects: one change per control transaction, with its audit entry. Callers check access before.
Depends on: provisioning, directory. Used from outside: the functions below."""

from projects.provisioning.branching import ref_of
from projects.services.environments import (
    change_environment,
    create_branch,
    delete_environment,
    filled_branch,
    find_source,
    is_ready,
    reset_branch,
)
from projects.services.member_invitations import accept_invitation, invite_member, withdraw_invitation
from projects.services.members import add_member, change_member, remove_member
from projects.services.projects import change_project, create_project, delete_project, resume_project, suspend_project

__all__ = [
    "accept_invitation",
    "add_member",
    "change_environment",
    "change_member",
    "change_project",
    "create_branch",
    "create_project",
    "delete_environment",
    "delete_project",
    "filled_branch",
    "find_source",
    "invite_member",
    "is_ready",
    "ref_of",
    "remove_member",
    "reset_branch",
    "resume_project",
    "suspend_project",
    "withdraw_invitation",
]
