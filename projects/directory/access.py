"""Checks access to a project: 404 if it is invisible, 403 if the role does not suffice."""

from django.db.models import F

from platform_site.http.errors import Forbidden, ProjectSuspended, first_or
from platform_site.identity import ids
from platform_site.identity.callers import Caller, ProjectRole
from projects.directory import roles
from projects.errors import NoSuchEnvironment, NoSuchProject, RoleNeeded
from projects.models import Environment, Project


def project_for(
    caller: Caller, project_id: str, needed: ProjectRole = "viewer", *, though_suspended: bool = False
) -> Project:
    """The live project, if the caller's role is at least `needed`. App users and environment keys are viewers. A
    suspended one can be viewed; more only `though_suspended`. Raises NoSuchProject, RoleNeeded, ProjectSuspended."""
    if not ids.matches("prj", project_id):
        raise NoSuchProject
    visible = Project.objects.visible_to(caller).filter(pk=project_id)
    if caller.account_id is not None:
        visible = visible.annotate(caller_role=F("memberships__role"))
    found = first_or(visible, NoSuchProject)
    role: ProjectRole = getattr(found, "caller_role", "viewer")
    if roles.RANK[role] < roles.RANK[needed]:
        raise RoleNeeded(needed)
    if found.suspended_at is not None and needed != "viewer" and not though_suspended:
        raise ProjectSuspended
    return found


def require_key_of(caller: Caller, *environment_ids: str | None) -> None:
    """Raise RoleNeeded for a key of another environment."""
    if caller.kind == "key" and caller.environment and caller.environment.environment_id not in environment_ids:
        raise RoleNeeded("developer")


def branch_for(caller: Caller, project_id: str, environment_id: str) -> Environment:
    """The live environment, if the caller may delete it: owners, developers, and a key its own environment and its
    branches. Raises NoSuchProject, NoSuchEnvironment, RoleNeeded."""
    project = project_for(caller, project_id, needed_for_branches(caller))
    found = _live_environment(project, environment_id)
    require_key_of(caller, found.pk, found.parent_id)
    return found


def needed_for_branches(caller: Caller) -> ProjectRole:
    """An environment's key has no role: its scopes and `require_key_of` limit it."""
    return "viewer" if caller.kind == "key" and caller.account_id is None else "developer"


def environment_for(
    caller: Caller, project_id: str, environment_id: str, needed: ProjectRole = "viewer"
) -> Environment:
    """The live environment, if the caller's role admits it. A key has every role in its own environment and reads
    others; an app user sees only its own. Raises NoSuchProject, NoSuchEnvironment, RoleNeeded, Forbidden."""
    own = caller.environment is not None and caller.environment.environment_id == environment_id
    project = project_for(caller, project_id, "viewer" if caller.kind == "key" and own else needed)
    found = _live_environment(project, environment_id)
    if caller.kind in ("user", "staff") and not own:
        raise Forbidden("This caller can only see its own environment.")
    return found


def _live_environment(project: Project, environment_id: str) -> Environment:
    named = environment_id if ids.matches("env", environment_id) else ""
    return first_or(project.environments.live().filter(pk=named), NoSuchEnvironment)
