"""REST endpoints of projects, members, environments and limits. Contract sections 4.1-4.4."""

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin

from accounts.models.registration import AccountEmail
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
from platform_site.http.fields import Serializer
from platform_site.http.generics import ResourceViewSet
from platform_site.http.idempotency import idempotent
from platform_site.http.openapi.description import listing
from platform_site.http.views import created, no_content, respond
from platform_site.identity.callers import Caller, ProjectRole
from platform_site.redis import rate_limits as api_limits
from projects import services
from projects.api import serializers
from projects.directory import environments, invitations, limits
from projects.directory.access import branch_for, environment_for, needed_for_branches, project_for, require_key_of
from projects.errors import NoSuchAccount
from projects.models import Environment, Member, Project


@extend_schema_view(
    list=extend_schema(description="The projects that the token can access, the newest first."),
    retrieve=extend_schema(description="One project with its environments."),
)
class ProjectViewSet(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    environment_use = "unused"
    required_scopes = {
        "list": "projects:read",
        "create": "projects:create",
        "retrieve": "projects:read",
        # Changes have no scope of their own: it is that of creating projects, within the limits of the member's role.
        "partial_update": "projects:create",
        "destroy": "projects:delete",
    }
    also_raises: ClassVar = {"create": (QuotaExceeded,), "partial_update": (QuotaExceeded,)}
    cursor_kind, ordering = "projects", ("-created_at", "-id")

    def get_queryset(self) -> QuerySet[Project]:
        return Project.objects.visible_to(self.caller).only("id", "name", "region", "created_at")

    def get_object(self) -> Project:
        return project_for(self.caller, self.kwargs["project_id"])

    def get_serializer_class(self) -> type[Serializer]:
        return serializers.ListedProject if self.action == "list" else serializers.ProjectDetail

    @idempotent()
    @extend_schema(request=serializers.NewProject, responses={201: serializers.CreatedProject})
    def create(self, request: HttpRequest) -> HttpResponseBase:
        """Make a project with its development and production environments and their databases."""
        values = self.read(serializers.NewProject)
        if self.caller.account_id is None:
            raise Forbidden  # the scopes of users and environment keys never admit them here
        project = services.create_project(account_id=self.caller.account_id, actor=self.caller, **values)
        return created(f"/v1/projects/{project.pk}", serializers.CreatedProject(project).data)

    @idempotent()
    @extend_schema(request=serializers.ProjectChanges)
    def partial_update(self, request: HttpRequest, project_id: str) -> HttpResponseBase:
        """Rename a project or change its plan. Owners and developers."""
        project = project_for(self.caller, project_id, "developer")
        values = self.read(serializers.ProjectChanges, instance=project)
        project = services.change_project(project_id, actor=self.caller, **values)
        return respond(self.get_serializer(project).data)

    def destroy(self, request: HttpRequest, project_id: str) -> HttpResponseBase:
        """Delete a project for good with everything in it. Owners only."""
        project_for(self.caller, project_id, "owner", though_suspended=True)
        services.delete_project(project_id, actor=self.caller)
        return no_content()


@extend_schema_view(retrieve=extend_schema(description="One environment with its settings."))
class EnvironmentViewSet(RetrieveModelMixin, ResourceViewSet):
    environment_use = "unused"
    serializer_class = serializers.EnvironmentDetail
    required_scopes = {
        "of_project": "environments:read",
        "create": "environments:write",
        "retrieve": "environments:read",
        "partial_update": "environments:write",
        "destroy": "environments:write",
        "reset": "environments:write",
    }
    query_parameters = {"of_project": frozenset[str]()}
    also_raises: ClassVar = {
        "create": (Conflict, QuotaExceeded),
        "destroy": (Conflict,),
        "reset": (Conflict, Unavailable),
    }

    @extend_schema(
        operation_id="listEnvironments",
        responses=listing(serializers.ListedEnvironment, paged=False, name="Environment"),
    )
    def of_project(self, request: HttpRequest, project_id: str) -> HttpResponseBase:
        """Every environment of the project, preview branches among them, sorted by name."""
        project = project_for(self.caller, project_id)
        found = environments.with_schema_versions(project.cluster, list(project.listed_environments()))
        return respond({"data": serializers.ListedEnvironment(found, many=True).data})

    def get_object(self) -> Environment:
        return environment_for(self.caller, self.kwargs["project_id"], self.kwargs["environment_id"])

    def get_serializer(self, environment: Environment, **options: Any) -> Any:
        environments.with_schema_versions(environment.project.cluster, [environment])
        return super().get_serializer(environment, **options)

    @idempotent()
    @extend_schema(
        operation_id="createBranch", request=serializers.NewBranch, responses={201: serializers.EnvironmentDetail}
    )
    def create(self, request: HttpRequest, project_id: str) -> HttpResponseBase:
        """Make a preview branch of an environment: schema, webhooks (disabled), functions, and if asked for all rows.
        With many rows it answers with the status `creating`. Owners, developers, keys of the environment."""
        project = project_for(self.caller, project_id, needed_for_branches(self.caller))
        values = self.read(serializers.NewBranch)
        source = services.find_source(project, values.pop("from"))
        require_key_of(self.caller, source.pk)
        branch = services.create_branch(project_id, source_id=source.pk, actor=self.caller, **values)
        location = f"/v1/projects/{project_id}/environments/{branch.pk}"
        return created(location, self.get_serializer(branch).data)

    @idempotent()
    @extend_schema(request=serializers.EnvironmentChanges)
    def partial_update(self, request: HttpRequest, project_id: str, environment_id: str) -> HttpResponseBase:
        """Change which web origins may read the environment's answers, and when a preview branch is deleted. Owners,
        developers, keys of the environment."""
        environment = environment_for(self.caller, project_id, environment_id, "developer")
        values = self.read(serializers.EnvironmentChanges)
        if "expires_at" in values and not environment.is_branch:
            raise ValidationFailed.of("expires_at", "not_a_branch", "Only a preview branch expires.")
        changed = services.change_environment(environment_id, **values, actor=self.caller)
        return respond(self.get_serializer(changed).data)

    @extend_schema(operation_id="deleteBranch")
    def destroy(self, request: HttpRequest, project_id: str, environment_id: str) -> HttpResponseBase:
        """Delete a preview branch for good with everything in it. Owners, developers, keys of it or its parent."""
        branch_for(self.caller, project_id, environment_id)
        services.delete_environment(project_id, environment_id, actor=self.caller)
        return no_content()

    @idempotent()
    @extend_schema(operation_id="resetBranch", request=serializers.BranchReset)
    def reset(self, request: HttpRequest, project_id: str, environment_id: str) -> HttpResponseBase:
        """Make a preview branch a copy of its parent again: schema, webhooks, functions, and if asked for all rows.

        Webhooks are disabled. Keys, origins and expiry stay. Owners, developers, keys of the parent."""
        branch = branch_for(self.caller, project_id, environment_id)
        if branch.parent is not None:
            require_key_of(self.caller, branch.parent_id)
        branch = services.reset_branch(environment_id, **self.read(serializers.BranchReset), actor=self.caller)
        return respond(self.get_serializer(branch).data)


def team_of(caller: Caller, project_id: str, needed: ProjectRole, *, though_suspended: bool = False) -> Project:
    """The project whose members are requested, as `project_for`. Raises Forbidden for callers other than accounts."""
    project = project_for(caller, project_id, needed, though_suspended=though_suspended)
    if caller.kind != "account":
        raise Forbidden("Only signed-in platform accounts can manage members.")
    return project


@extend_schema_view(list=extend_schema(description="The members of the project, in the order in which they joined."))
class MemberViewSet(ListModelMixin, ResourceViewSet):
    environment_use = "unused"
    serializer_class = serializers.MemberDetail
    cursor_kind, ordering = "members", ("created_at", "id")
    required_scopes = {"list": "projects:read", "create": None, "partial_update": None, "destroy": None}
    also_raises: ClassVar = {
        "create": (Forbidden, Conflict, QuotaExceeded),
        "partial_update": (Forbidden, Conflict),
        "destroy": (Forbidden, Conflict),
    }

    def get_queryset(self) -> QuerySet[Member]:
        return team_of(self.caller, self.kwargs["project_id"], "viewer").memberships.select_related("user")

    @idempotent()
    @extend_schema(
        request=serializers.NewMember, responses={201: serializers.MemberDetail, 202: serializers.MemberInvitation}
    )
    def create(self, request: HttpRequest, project_id: str) -> HttpResponseBase:
        """Give the account with this email a role in the project. Owners only.

        Where no account has it, and the operator lets people in by invitation, it is invited: 202, and an email with a
        link that makes its owner a member, and an account if there is none by then. Asked again, the newer one counts.
        """
        project = team_of(self.caller, project_id, "owner")
        values = self.read(serializers.NewMember)
        named = {"email": values["email"], "role": values["role"], "actor": self.caller}
        api_limits.count_member_request(self.http_request, self.caller.id)
        try:
            member = services.add_member(project_id, **named)
        except NoSuchAccount:
            made = services.invite_member(
                project_id, **named, check_limit=lambda: self._count(project, values["email"])
            )
            address = f"/v1/projects/{project_id}/invitations/{made.pk}"
            return respond(serializers.MemberInvitation(made).data, 202, headers={"Location": address})
        return created(f"/v1/projects/{project_id}/members/{member.user_id}", self.get_serializer(member).data)

    def _count(self, project: Project, email: str) -> None:
        """Count an email for project, recipient and client IP. Raises RateLimited."""
        request = self.http_request
        api_limits.count_invitation(request, pool_id=project.pk, plan=project.plan)
        api_limits.count_email_request(
            request, kind=invitations.KIND, pool_id=None, email=email, plan=pool_settings.PLATFORM_PLAN
        )

    @idempotent()
    @extend_schema(request=serializers.MemberChanges)
    def partial_update(self, request: HttpRequest, project_id: str, user_id: str) -> HttpResponseBase:
        """Give a member another role. Owners only; a project keeps at least one."""
        team_of(self.caller, project_id, "owner")
        values = self.read(serializers.MemberChanges)
        member = services.change_member(project_id, user_id, role=values.get("role"), actor=self.caller)
        return respond(self.get_serializer(member).data)

    def destroy(self, request: HttpRequest, project_id: str, user_id: str) -> HttpResponseBase:
        """End a membership. Owners, and every member its own."""
        team_of(self.caller, project_id, "viewer" if user_id == self.caller.id else "owner")
        services.remove_member(project_id, user_id, actor=self.caller)
        return no_content()


@extend_schema_view(
    list=extend_schema(description="The open invitations into the project, the newest first. Owners only.")
)
class MemberInvitationViewSet(ListModelMixin, ResourceViewSet):
    environment_use = "unused"
    serializer_class = serializers.MemberInvitation
    cursor_kind, ordering = "member_invitations", ("-id",)
    required_scopes = {"list": "projects:read", "destroy": None}
    also_raises: ClassVar = {"list": (Forbidden,), "destroy": (Forbidden,)}

    def get_queryset(self) -> QuerySet[AccountEmail]:
        return invitations.pending(team_of(self.caller, self.kwargs["project_id"], "owner", though_suspended=True).pk)

    def destroy(self, request: HttpRequest, project_id: str, invitation_id: str) -> HttpResponseBase:
        """Withdraw an invitation into the project. Its link stops working. Owners only."""
        team_of(self.caller, project_id, "owner", though_suspended=True)
        services.withdraw_invitation(project_id, invitation_id, actor=self.caller)
        return no_content()


class MemberInvitationAcceptViewSet(ResourceViewSet):
    public = True
    serializer_class = serializers.JoinedProject
    also_raises: ClassVar = {"accept": (InvalidGrant, Forbidden, QuotaExceeded)}

    @idempotent()
    @extend_schema(operation_id="acceptMemberInvitation", request=serializers.AcceptedInvitation)
    def accept(self, request: HttpRequest) -> HttpResponseBase:
        """Accept an invitation into a project. Without an account, choose a password to create one.

        It does not sign in: the link proves the email address, not the account's password."""
        values = self.read(serializers.AcceptedInvitation)
        api_limits.count_token_request(self.http_request)
        member = services.accept_invitation(**values)
        return respond(self.get_serializer(member).data)


@extend_schema_view(
    retrieve=extend_schema(description="The limits of the caller's plan, and how much of each is used.")
)
class LimitsViewSet(RetrieveModelMixin, ResourceViewSet):
    environment_use = "optional"
    required_scopes = {"retrieve": None}
    also_raises: ClassVar = {"retrieve": (NotFound, ValidationFailed)}
    serializer_class = serializers.Limits

    def get_object(self) -> dict[str, Any]:
        return {"environment": self.caller.environment, "limits": limits.of(self.caller)}
