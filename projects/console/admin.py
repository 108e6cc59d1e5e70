"""Console pages of projects, environments and members, which use the services of the API."""

from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import Error
from django.db.models import Count, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path
from django.utils.html import format_html
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextInputWidget

from accounts.console.base import (
    AsOpened,
    ConditionFilter,
    ConsoleAdmin,
    ReadOnlyAdmin,
    console_url,
    list_link,
    showing_errors,
    staff,
    url_of,
)
from accounts.models import User
from accounts.staff.roles import OPERATE
from platform_site.http.errors import ValidationFailed
from projects import services
from projects.directory import environments
from projects.models import REASON_LENGTH, Environment, Member, Plan, Project, Region

PLAN_COLOURS = {Plan.FREE: "info", Plan.PRO: "success", Plan.TEAM: "warning"}
STATUS_COLOURS = {
    Environment.Status.READY: "success",
    Environment.Status.CREATING: "info",
    Environment.Status.MIGRATING: "info",
    Environment.Status.FAILED: "danger",
    Environment.Status.DELETING: "warning",
}


@display(description="id")
def _shown_id(page: ConsoleAdmin, thing: Project | Environment) -> str:
    return format_html('<code class="text-xs select-all whitespace-nowrap">{}</code>', thing.pk)


class SuspensionForm(forms.Form):
    reason = forms.CharField(
        label="Reason",
        max_length=REASON_LENGTH,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}),
        help_text="Shown to the project's members. One line.",
    )


class SuspendedFilter(ConditionFilter):
    title = parameter_name = "suspended"
    conditions: ClassVar = {
        "yes": ("Suspended", Q(suspended_at__isnull=False)),
        "no": ("Not suspended", Q(suspended_at=None)),
    }


class NewProjectForm(forms.ModelForm):  # type: ignore[type-arg]
    owner = forms.CharField(
        label="Owner's email", widget=UnfoldAdminTextInputWidget, help_text="A platform account; it becomes the owner."
    )

    class Meta:
        model = Project
        fields = ("name", "region", "plan")

    def clean_owner(self) -> User:
        found = User.objects.with_email(None, self.cleaned_data["owner"].strip()).filter(disabled_at=None).first()
        if found is None:
            raise forms.ValidationError("No account has this email.")
        return found


@admin.register(Project)
class ProjectAdmin(ConsoleAdmin):
    form, add_form = AsOpened, NewProjectForm
    empty_words = "Add one for an account, or let an account create its own: POST /v1/projects."
    list_display = ("name", "shown_id", "region", "shown_plan", "owner", "member_count", "created_at", "life")
    list_filter = ("region", "plan", SuspendedFilter, ("deleted_at", admin.EmptyFieldListFilter))
    search_fields = ("=id", "name", "=environments__id", "=memberships__user__email", "=memberships__user__id")
    search_help_text = "Name, project id, environment id, or a member's email or id"
    ordering = ("-created_at", "-id")
    change_form_outer_before_template = "admin/projects/project/overview.html"
    change_form_outer_after_template = "admin/projects/project/danger.html"
    delete_confirmation_template = "admin/projects/project/delete.html"
    readonly_fields = ("shown_id", "region", "cluster", "created_by", "created_at", "deleted_at")
    fieldsets = (
        (None, {"fields": ("name", "plan")}),
        ("Where and since when", {"fields": readonly_fields}),
    )

    shown_id = _shown_id

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Project]":
        found: QuerySet[Project] = super().get_queryset(request)
        return found.annotate(member_count=Count("memberships", distinct=True)).prefetch_related("memberships__user")

    def get_fieldsets(self, request: HttpRequest, obj: Project | None = None) -> Any:
        return self.fieldsets if obj else ((None, {"fields": ("name", "owner", "region", "plan")}),)

    def has_change_permission(self, request: HttpRequest, obj: Project | None = None) -> bool:
        return bool(super().has_change_permission(request, obj)) and (obj is None or obj.deleted_at is None)

    def has_delete_permission(self, request: HttpRequest, obj: Project | None = None) -> bool:
        return super().has_delete_permission(request, obj) and (obj is None or obj.deleted_at is None)

    def save_model(self, request: HttpRequest, obj: Project, form: Any, change: bool) -> None:
        if change:
            wanted = {field: form.cleaned_data[field] for field in form.changed_data}
            services.change_project(obj.pk, actor=staff(request), name=wanted.get("name"), plan=wanted.get("plan"))
            return
        made = services.create_project(
            account_id=form.cleaned_data["owner"].pk,
            name=obj.name,
            region=obj.region,
            plan=obj.plan,
            actor=staff(request),
        )
        obj.pk, obj._state.adding = made.pk, False

    def get_urls(self) -> list[Any]:
        suspend = path(
            "<path:object_id>/suspend/", self.admin_site.admin_view(self.suspend_view), name="projects_project_suspend"
        )
        resume = path(
            "<path:object_id>/resume/", self.admin_site.admin_view(self.resume_view), name="projects_project_resume"
        )
        return [suspend, resume, *super().get_urls()]

    @showing_errors
    def suspend_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Asks for the reason; for a suspended project it changes the reason."""
        project = self._project_to_operate(request, object_id)
        form = SuspensionForm(request.POST or None, initial={"reason": project.suspension_reason or ""})
        if request.method == "POST" and form.is_valid():
            try:
                services.suspend_project(project.pk, reason=form.cleaned_data["reason"], actor=staff(request))
            except ValidationFailed as error:
                form.add_error("reason", " ".join(field.message for field in error.fields))
            else:
                return self._redirect(request, project, f"{project.name} is suspended.")
        title = f"Suspend {project.name}?" if project.suspended_at is None else f"Why {project.name} is suspended"
        return self._confirmation_page(request, project, title, verb="suspend", form=form)

    @showing_errors
    def resume_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        project = self._project_to_operate(request, object_id)
        if request.method == "POST":
            was_suspended = services.resume_project(project.pk, actor=staff(request))
            outcome = "was resumed." if was_suspended else "was not suspended."
            return self._redirect(request, project, f"{project.name} {outcome}")
        return self._confirmation_page(request, project, f"Resume {project.name}?", verb="resume")

    def _project_to_operate(self, request: HttpRequest, object_id: str) -> Project:
        """The live project. Raises PermissionDenied for support, Http404."""
        if not request.user.has_perm(OPERATE):
            raise PermissionDenied
        project: Project | None = self.get_object(request, unquote(object_id))
        if project is None or project.deleted_at is not None:
            raise Http404("There is no such project.")
        return project

    def _confirmation_page(self, request: HttpRequest, project: Project, title: str, **more: Any) -> HttpResponse:
        context = self.admin_site.each_context(request) | {
            "title": title,
            "opts": self.opts,
            "object": project,
            "back": url_of("projects_project", project.pk),
            **more,
        }
        return TemplateResponse(request, "admin/projects/project/suspend.html", context)

    def _redirect(self, request: HttpRequest, project: Project, message: str) -> HttpResponse:
        self.message_user(request, message, messages.SUCCESS)
        return HttpResponseRedirect(url_of("projects_project", project.pk))

    def delete_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> Any:
        if request.method == "POST":
            project = self.get_object(request, unquote(object_id))
            if project is not None and request.POST.get("confirm", "").strip() != project.name.strip():
                self.message_user(request, "Nothing was deleted: type the project's name to confirm.", messages.ERROR)
                return HttpResponseRedirect(request.get_full_path())
        return super().delete_view(request, object_id, *args, **kwargs)

    def delete_model(self, request: HttpRequest, obj: Project) -> None:
        services.delete_project(obj.pk, actor=staff(request))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Lists what the service will delete, not Django's cascade."""
        found = Environment.objects.filter(project__in=objs)
        summary = {"projects": len(objs), "environments with all their tables, users and keys": found.count()}
        listed = [
            item
            for project in objs
            for item in (
                format_html("Project {} ({})", project.name, project.pk),
                [format_html("{} ({})", each.name, each.pk) for each in found.filter(project=project).order_by("name")],
            )
        ]
        return listed, summary, set(), []

    @display(description="plan", ordering="plan", label=PLAN_COLOURS)
    def shown_plan(self, project: Project) -> str:
        return project.plan

    @display(description="owner")
    def owner(self, project: Project) -> str:
        owners = [member.user.email for member in project.memberships.all() if member.role == Member.Role.OWNER]
        if not owners:
            return "–"
        return owners[0] if len(owners) == 1 else f"{owners[0]} +{len(owners) - 1}"

    @display(description="members", ordering="member_count")
    def member_count(self, project: Project) -> int:
        return int(project.member_count)  # type: ignore[attr-defined]  # annotated in get_queryset

    @display(description="state", label={"live": "success", "suspended": "warning", "being deleted": "danger"})
    def life(self, project: Project) -> str:
        return project.state


@admin.register(Environment)
class EnvironmentAdmin(ReadOnlyAdmin):
    empty_words = "Each project comes with two environments and its owner as a member."
    list_display = ("name", "shown_id", "project", "region", "shown_status", "created_at")
    list_filter = ("status", "project__region", ("parent", admin.EmptyFieldListFilter))
    list_select_related = ("project",)
    search_fields = ("=id", "=name", "=project__id", "project__name")
    search_help_text = "Environment id or name, project id or name"
    ordering = ("-created_at", "-id")
    fieldsets = (
        (None, {"fields": (
            "shown_id", "name", "project", "region", "shown_status", "status_reason", "schema_version", "console",
        )}),
        ("Users, keys and branches", {"fields": ("users", "keys", "pool_id", "parent", "created_at")}),
    )  # fmt: skip

    shown_id = _shown_id

    @display(description="region", ordering="project__region")
    def region(self, environment: Environment) -> str:
        return Region(environment.project.region).value

    @display(description="status", ordering="status", label=STATUS_COLOURS)
    def shown_status(self, environment: Environment) -> str:
        return environment.status

    @display(description="users")
    def users(self, environment: Environment) -> str:
        return list_link("accounts_user", "users who sign in here", q=environment.pool_id)

    @display(description="keys")
    def keys(self, environment: Environment) -> str:
        return list_link("accounts_serverkey", "keys of this environment", q=environment.pk)

    @display(description="contents and settings")
    def console(self, environment: Environment) -> str:
        address = console_url(environment.project_id, environment.pk)
        return format_html('<a class="text-link" href="{}">Open it in the console of its project</a>', address)

    @display(description="schema version")
    def schema_version(self, environment: Environment) -> str:
        try:
            version = environments.schema_versions(environment.project.cluster, [environment.pk])[environment.pk]
            return str(version)
        except Error:
            return "the region is unavailable"


# Django looks for an app's pages here.
from projects.console import members as _members  # noqa: E402, F401
