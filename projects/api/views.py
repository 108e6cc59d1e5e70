"""REST endpoints of projects, members, environments and limits. Contract sections 4.1-4.4."""

from typing import ClassVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema

from accounts.registration import pool_settings
from platform_site.http.errors import (
    Conflict,
    Forbidden,
    InvalidGrant,
    NotFound,
    QuotaExceeded,
    Unavailable,
    ValidationFailed,
)
from platform_site.http.idempotency import idempotent
from platform_site.http.pagination import paginate, read_limit
from platform_site.http.views import ApiViewSet, created, no_content, respond
from platform_site.identity import ids
from platform_site.identity.callers import Caller, ProjectRole
from platform_site.redis import rate_limits as api_limits
from projects import services
from projects.api import list_query, serializers
from projects.api.serializers import (
    created_project,
    environment_detail,
    invitation_detail,
    joined_project,
    member_detail,
    project_detail,
)
from projects.directory import environments, invitations, limits
from projects.directory.access import branch_for, environment_for, may_branch, needed_for_branches, project_for
from projects.errors import NoSuchAccount, NoSuchInvitation
from projects.models import Environment, Project


class ProjectViewSet(ApiViewSet):
    environment = "unused"
    required_scopes = {
        "list": "projects:read",
        "create": "projects:create",
        "retrieve": "projects:read",
        # Changes have no scope of their own: it is that of creating projects, within the limits of the member's role.
        "partial_update": "projects:create",
        "destroy": "projects:delete",
    }
    also_raises: ClassVar = {"create": (QuotaExceeded,), "partial_update": (QuotaExceeded,)}

    @extend_schema(responses=serializers.ProjectPage)
    def list(self, request: HttpRequest) -> HttpResponseBase:
        """The projects that the token can access, the newest first."""
        return respond(list_query.page(self.caller, read_limit(self.query.get("limit")), self.query.get("cursor")))

    @idempotent()
    @extend_schema(request=serializers.NewProject, responses={201: serializers.CreatedProject})
    def create(self, request: HttpRequest) -> HttpResponseBase:
        """Make a project with its development and production environments and their databases."""
        values = self.read(serializers.NewProject)
        project = services.create_project(
            account_id=_account_of(self.caller),
            name=values["name"],
            region=values["region"],
            plan=values["plan"],
            actor=self.caller,
        )
        return created(f"/v1/projects/{project.pk}", created_project(project))

    @extend_schema(responses=serializers.ProjectDetail)
    def retrieve(self, request: HttpRequest, project_id: str) -> HttpResponseBase:
        """One project with its environments."""
        return respond(project_detail(project_for(self.caller, project_id)))

    @idempotent()
    @extend_schema(request=serializers.ProjectChanges, responses=serializers.ProjectDetail)
    def partial_update(self, request: HttpRequest, project_id: str) -> HttpResponseBase:
        """Rename a project or change its plan. Owners and developers."""
        project_for(self.caller, project_id, "developer")
        values = self.read(serializers.ProjectChanges)
        project = services.change_project(
            project_id, actor=self.caller, name=values.get("name"), plan=values.get("plan")
        )
        return respond(project_detail(project))

    @extend_schema(responses={204: None})
    def destroy(self, request: HttpRequest, project_id: str) -> HttpResponseBase:
        """Delete a project for good with everything in it. Owners only."""
        project_for(self.caller, project_id, "owner", though_suspended=True)
        services.delete_project(project_id, actor=self.caller)
        return no_content()


def _account_of(caller: Caller) -> str:
    if caller.account_id is None:
        raise Forbidden  # the scopes of users and environment keys never admit them here
    return caller.account_id


class EnvironmentViewSet(ApiViewSet):
    environment = "unused"
    required_scopes = {
        "of_project": "environments:read",
        "create": "environments:write",
        "retrieve": "environments:read",
        "partial_update": "environments:write",
        "destroy": "environments:write",
        "reset": "environments:write",
    }
    also_raises: ClassVar = {
        "create": (Conflict, QuotaExceeded),
        "destroy": (Conflict,),
        "reset": (Conflict, Unavailable),
    }

    @extend_schema(operation_id="listEnvironments", responses=serializers.EnvironmentList)
    def of_project(self, request: HttpRequest, project_id: str) -> HttpResponseBase:
        """Every environment of the project, preview branches among them, sorted by name."""
        project = project_for(self.caller, project_id)
        found = list(
            project.environments.exclude(status=Environment.Status.DELETING)
            .order_by("name", "pk")
            .values_list("pk", "name", "status")
        )
        versions = environments.schema_versions(project.cluster, [pk for pk, _, _ in found])
        return respond(
            {
                "data": [
                    {"id": pk, "name": name, "schema_version": versions[pk], "status": status}
                    for pk, name, status in found
                ]
            }
        )

    @idempotent()
    @extend_schema(
        operation_id="createBranch", request=serializers.NewBranch, responses={201: serializers.EnvironmentDetail}
    )
    def create(self, request: HttpRequest, project_id: str) -> HttpResponseBase:
        """Make a preview branch of an environment: schema, webhooks (disabled), functions, and if asked for all rows.
        With many rows it answers with the status `creating`. Owners, developers, keys of the environment."""
        project = project_for(self.caller, project_id, needed_for_branches(self.caller))
        values = self.read(serializers.NewBranch)
        source = services.find_source(project, values["from"])
        may_branch(self.caller, source)
        branch = services.create_branch(
            project_id,
            name=values["name"],
            source_id=source.pk,
            data=values["data"],
            expires_at=values.get("expires_at"),
            actor=self.caller,
        )
        return created(
            f"/v1/projects/{project_id}/environments/{branch.pk}", environment_detail(branch, project.cluster)
        )

    @extend_schema(responses=serializers.EnvironmentDetail)
    def retrieve(self, request: HttpRequest, project_id: str, environment_id: str) -> HttpResponseBase:
        """One environment with its settings."""
        environment = environment_for(self.caller, project_id, environment_id)
        return respond(environment_detail(environment, environment.project.cluster))

    @idempotent()
    @extend_schema(request=serializers.EnvironmentChanges, responses=serializers.EnvironmentDetail)
    def partial_update(self, request: HttpRequest, project_id: str, environment_id: str) -> HttpResponseBase:
        """Change which web origins may read the environment's answers, and when a preview branch is deleted. Owners,
        developers, keys of the environment."""
        environment = environment_for(self.caller, project_id, environment_id, "developer")
        values = self.read(serializers.EnvironmentChanges)
        if "expires_at" in values and not environment.is_branch:
            raise ValidationFailed.of("expires_at", "not_a_branch", "Only a preview branch expires.")
        changed = services.change_environment(environment_id, **values, actor=self.caller)
        return respond(environment_detail(changed, changed.project.cluster))

    @extend_schema(operation_id="deleteBranch", responses={204: None})
    def destroy(self, request: HttpRequest, project_id: str, environment_id: str) -> HttpResponseBase:
        """Delete a preview branch for good with everything in it. Owners, developers, keys of it or its parent."""
        branch_for(self.caller, project_id, environment_id)
        services.delete_environment(project_id, environment_id, actor=self.caller)
        return no_content()

    @idempotent()
    @extend_schema(
        operation_id="resetBranch", request=serializers.BranchReset, responses={200: serializers.EnvironmentDetail}
    )
    def reset(self, request: HttpRequest, project_id: str, environment_id: str) -> HttpResponseBase:
        """Make a preview branch a copy of its parent again: schema, webhooks, functions, and if asked for all rows.

        Webhooks are disabled. Keys, origins and expiry stay. Owners, developers, keys of the parent."""
        branch = branch_for(self.caller, project_id, environment_id)
        if branch.parent is not None:
            may_branch(self.caller, branch.parent)
        values = self.read(serializers.BranchReset)
        branch = services.reset_branch(environment_id, data=values["data"], actor=self.caller)
        return respond(environment_detail(branch, branch.project.cluster))


def team_of(caller: Caller, project_id: str, needed: ProjectRole, *, though_suspended: bool = False) -> Project:
    """The project whose members are requested, as `project_for`. Raises Forbidden for callers other than accounts."""
    project = project_for(caller, project_id, needed, though_suspended=though_suspended)
    if caller.kind != "account":
        raise Forbidden("Only signed-in platform accounts can manage members.")
    return project


class MemberViewSet(ApiViewSet):
    environment = "unused"
    required_scopes = {"list": "projects:read", "create": None, "partial_update": None, "destroy": None}
    also_raises: ClassVar = {
        "create": (Forbidden, Conflict, QuotaExceeded),
        "partial_update": (Forbidden, Conflict),
        "destroy": (Forbidden, Conflict),
    }

    @extend_schema(responses=serializers.MemberPage)
    def list(self, request: HttpRequest, project_id: str) -> HttpResponseBase:
        """The members of the project, in the order in which they came."""
        project = team_of(self.caller, project_id, "viewer")
        page = paginate(
            project.memberships.select_related("user"),
            ["created_at", "id"],
            read_limit(self.query.get("limit")),
            self.query.get("cursor"),
            "members",
            [project_id],
        )
        return respond({"data": [member_detail(member) for member in page.items], "next_cursor": page.next_cursor})

    @idempotent()
    @extend_schema(
        request=serializers.NewMember, responses={201: serializers.MemberDetail, 202: serializers.MemberInvitation}
    )
    def create(self, request: HttpRequest, project_id: str) -> HttpResponseBase:
        """Give the account with this e-mail a role in the project. Owners only.

        Where no account has it, and the operator lets people in by invitation, it is invited: 202, and an e-mail with a
        link that makes its owner a member, and an account if there is none by then. Asked again, the newer one counts.
        """
        project = team_of(self.caller, project_id, "owner")
        values = self.read(serializers.NewMember)
        named = {"email": values["email"], "role": values["role"], "actor": self.caller}
        api_limits.count_member_request(self.request._request, self.caller.id)
        try:
            member = services.add_member(project_id, **named)
        except NoSuchAccount:
            made = services.invite_member(project_id, **named, admit=lambda: self._count(project, values["email"]))
            address = f"/v1/projects/{project_id}/invitations/{made.pk}"
            return respond(invitation_detail(made), 202, headers={"Location": address})
        return created(f"/v1/projects/{project_id}/members/{member.user_id}", member_detail(member))

    def _count(self, project: Project, email: str) -> None:
        """Count an email for project, recipient and client IP. Raises RateLimited."""
        request = self.request._request
        api_limits.count_invitation(request, pool_id=project.pk, plan=project.plan)
        api_limits.count_email_request(
            request, kind=invitations.KIND, pool_id=None, email=email, plan=pool_settings.OF_PLATFORM
        )

    @idempotent()
    @extend_schema(request=serializers.MemberChanges, responses=serializers.MemberDetail)
    def partial_update(self, request: HttpRequest, project_id: str, user_id: str) -> HttpResponseBase:
        """Give a member another role. Owners only; a project keeps at least one."""
        team_of(self.caller, project_id, "owner")
        values = self.read(serializers.MemberChanges)
        member = services.change_member(project_id, user_id, role=values.get("role"), actor=self.caller)
        return respond(member_detail(member))

    @extend_schema(responses={204: None})
    def destroy(self, request: HttpRequest, project_id: str, user_id: str) -> HttpResponseBase:
        """End a membership. Owners, and every member its own."""
        team_of(self.caller, project_id, "viewer" if user_id == self.caller.id else "owner")
        services.remove_member(project_id, user_id, actor=self.caller)
        return no_content()


class MemberInvitationViewSet(ApiViewSet):
    environment = "unused"
    required_scopes = {"list": "projects:read", "destroy": None}
    also_raises: ClassVar = {"list": (Forbidden,), "destroy": (Forbidden,)}

    @extend_schema(responses=serializers.MemberInvitationPage)
    def list(self, request: HttpRequest, project_id: str) -> HttpResponseBase:
        """The open invitations into the project, the newest first. Owners only."""
        team_of(self.caller, project_id, "owner", though_suspended=True)
        page = paginate(
            invitations.pending(project_id),
            ["-id"],
            read_limit(self.query.get("limit")),
            self.query.get("cursor"),
            "member_invitations",
            [project_id],
        )
        return respond({"data": [invitation_detail(email) for email in page.items], "next_cursor": page.next_cursor})

    @extend_schema(responses={204: None})
    def destroy(self, request: HttpRequest, project_id: str, invitation_id: str) -> HttpResponseBase:
        """Withdraw an invitation into the project. Its link works no longer. Owners only."""
        team_of(self.caller, project_id, "owner", though_suspended=True)
        if not ids.matches("inv", invitation_id):
            raise NoSuchInvitation
        services.withdraw_invitation(project_id, invitation_id, actor=self.caller)
        return no_content()


class MemberInvitationAcceptViewSet(ApiViewSet):
    public = True
    also_raises: ClassVar = {"accept": (InvalidGrant, Forbidden, QuotaExceeded)}

    @idempotent()
    @extend_schema(
        operation_id="acceptMemberInvitation",
        request=serializers.AcceptedInvitation,
        responses={200: serializers.JoinedProject},
    )
    def accept(self, request: HttpRequest) -> HttpResponseBase:
        """Accept an invitation into a project. Without an account, choose a password to create one.

        It does not sign in: the link proves the email address, not the account's password."""
        values = self.read(serializers.AcceptedInvitation)
        api_limits.count_token_request(self.request._request)
        member = services.accept_invitation(
            values["token"], password=values.get("password"), name=values.get("name", "")
        )
        return respond(joined_project(member))


class LimitsViewSet(ApiViewSet):
    environment = "optional"
    required_scopes = {"retrieve": None}
    also_raises: ClassVar = {"retrieve": (NotFound, ValidationFailed)}

    @extend_schema(responses=serializers.Limits)
    def retrieve(self, request: HttpRequest) -> HttpResponseBase:
        """The limits of the plan that the call is under, and how much of them is used."""
        place = self.caller.place
        return respond(
            {
                "project_id": place.project_id if place else None,
                "environment_id": place.environment_id if place else None,
                "limits": limits.of(self.caller),
            }
        )
