"""The services of projects: one change per control transaction, with its audit entry. Callers check access before.
Depends on: provisioning, directory. Used from outside: the functions below."""

from projects.services.environments import change_environment as change_environment
from projects.services.environments import create_branch as create_branch
from projects.services.environments import delete_environment as delete_environment
from projects.services.environments import filled_branch as filled_branch
from projects.services.environments import find_source as find_source
from projects.services.environments import is_ready as is_ready
from projects.services.environments import reset_branch as reset_branch
from projects.services.member_invitations import accept_invitation as accept_invitation
from projects.services.member_invitations import invite_member as invite_member
from projects.services.member_invitations import withdraw_invitation as withdraw_invitation
from projects.services.members import add_member as add_member
from projects.services.members import change_member as change_member
from projects.services.members import remove_member as remove_member
from projects.services.projects import change_project as change_project
from projects.services.projects import create_project as create_project
from projects.services.projects import delete_project as delete_project
from projects.services.projects import resume_project as resume_project
from projects.services.projects import suspend_project as suspend_project
