from django.urls import path

from projects.api import pages
from projects.api.audit_views import AuditViewSet
from projects.api.log_views import LogViewSet
from projects.api.views import (
    EnvironmentViewSet,
    LimitsViewSet,
    MemberInvitationAcceptViewSet,
    MemberInvitationViewSet,
    MemberViewSet,
    ProjectViewSet,
)

urlpatterns = [
    path("v1/projects", ProjectViewSet.as_view({"get": "list", "post": "create"})),
    path(
        "v1/projects/<str:project_id>",
        ProjectViewSet.as_view({"get": "retrieve", "patch": "partial_update", "delete": "destroy"}),
    ),
    path(
        "v1/projects/<str:project_id>/environments", EnvironmentViewSet.as_view({"get": "of_project", "post": "create"})
    ),
    path(
        "v1/projects/<str:project_id>/environments/<str:environment_id>",
        EnvironmentViewSet.as_view({"get": "retrieve", "patch": "partial_update", "delete": "destroy"}),
    ),
    path(
        "v1/projects/<str:project_id>/environments/<str:environment_id>/reset",
        EnvironmentViewSet.as_view({"post": "reset"}),
    ),
    path("v1/projects/<str:project_id>/members", MemberViewSet.as_view({"get": "list", "post": "create"})),
    path(
        "v1/projects/<str:project_id>/members/<str:user_id>",
        MemberViewSet.as_view({"patch": "partial_update", "delete": "destroy"}),
    ),
    path("v1/projects/<str:project_id>/invitations", MemberInvitationViewSet.as_view({"get": "list"})),
    path(
        "v1/projects/<str:project_id>/invitations/<str:invitation_id>",
        MemberInvitationViewSet.as_view({"delete": "destroy"}),
    ),
    path("v1/auth/member-invitation/accept", MemberInvitationAcceptViewSet.as_view({"post": "accept"})),
    path("auth/join-project", pages.JoinProject.as_view(), name="page_member_invitation"),
    path("v1/audit", AuditViewSet.as_view({"get": "list"})),
    path("v1/logs", LogViewSet.as_view({"get": "list"})),
    path("v1/limits", LimitsViewSet.as_view({"get": "retrieve"})),
]
