from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.widgets import UnfoldAdminTextInputWidget

from accounts.console.base import AsOpened, ConsoleAdmin, staff
from accounts.models import User
from accounts.staff.roles import MANAGE_STAFF
from platform_site.identity import ids
from projects import services
from projects.models import Member, Project


class NewMemberForm(forms.ModelForm):  # type: ignore[type-arg]
    email = forms.CharField(label="Email", widget=UnfoldAdminTextInputWidget, help_text="Of a platform account.")
    project_id = forms.CharField(label="Project id", widget=UnfoldAdminTextInputWidget, help_text="prj_…")
    may_add_staff = False

    class Meta:
        model = Member
        fields = ("role",)

    def clean_project_id(self) -> str:
        project_id: str = self.cleaned_data["project_id"].strip()
        if not ids.matches("prj", project_id) or not Project.objects.live().filter(pk=project_id).exists():
            raise forms.ValidationError("There is no such project.")
        return project_id

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        email, project_id = values.get("email", "").strip(), values.get("project_id")
        user = User.objects.with_email(None, email).filter(disabled_at=None).first()
        if user is None:
            self.add_error("email", "No account has this email.")
        elif user.is_staff and not self.may_add_staff:
            self.add_error("email", "Only superusers make staff members. To look at a project, ask at /console/staff.")
        elif project_id and Member.objects.filter(project_id=project_id, user=user).exists():
            self.add_error("email", "This account is already a member.")
        return values


@admin.register(Member)
class MemberAdmin(ConsoleAdmin):
    form, add_form = AsOpened, NewMemberForm
    empty_words = "Each project comes with two environments and its owner as a member."
    list_display = ("user", "role", "project", "created_at")
    list_filter = ("role",)
    search_fields = ("=user__email", "=user__id", "=project__id", "project__name")
    search_help_text = "Email or id of the account, name or id of the project"
    ordering = ("-created_at", "-id")
    fields = ("project", "user", "role", "created_at")
    add_fields = ("project_id", "email", "role")
    readonly_fields = ("project", "user", "created_at")

    def get_queryset(self, request: HttpRequest) -> "QuerySet[Member]":
        found: QuerySet[Member] = super().get_queryset(request)
        return found.filter(project__deleted_at__isnull=True).select_related("user", "project")

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form: Any = super().get_form(request, obj, change, **kwargs)
        form.may_add_staff = request.user.has_perm(MANAGE_STAFF)
        return form

    def has_change_permission(self, request: HttpRequest, obj: Member | None = None) -> bool:
        """Operators would give themselves a member's access, for good and without a reason."""
        is_of_staff = obj is not None and obj.user.is_staff
        return super().has_change_permission(request, obj) and (not is_of_staff or request.user.has_perm(MANAGE_STAFF))

    def save_model(self, request: HttpRequest, obj: Member, form: Any, change: bool) -> None:
        if change:
            services.change_member(obj.project_id, obj.user_id, role=form.cleaned_data["role"], actor=staff(request))
            return
        made = services.add_member(
            form.cleaned_data["project_id"],
            email=form.cleaned_data["email"].strip(),
            role=form.cleaned_data["role"],
            actor=staff(request),
        )
        obj.pk, obj.project_id, obj.user_id, obj._state.adding = made.pk, made.project_id, made.user_id, False

    def delete_model(self, request: HttpRequest, obj: Member) -> None:
        services.remove_member(obj.project_id, obj.user_id, actor=staff(request))
