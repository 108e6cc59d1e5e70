from django.contrib import admin
from unfold.decorators import display

from accounts.console.base import ReadOnlyAdmin, link, link_column, timeline_column
from accounts.models import AuditEntry, SigningKey
from platform_site.http import exact_json


@admin.register(SigningKey)
class SigningKeyAdmin(ReadOnlyAdmin):
    empty_words = "The first one is created when the first token is signed."
    list_display = ("kid", "signs_from", "retires_at", "created_at")
    ordering = ("-signs_from",)
    fields = ("kid", "public_jwk", "signs_from", "retires_at", "created_at")


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    search_fields = ("=id", "=actor_id", "=target_id", "=project_id", "=environment_id", "=request_id", "action")
    search_help_text = "Any id, a request id, or an action such as key.issued"
    list_display = ("at", "action", "actor", "target_id", "environment_id")
    empty_words = "Every change leaves an entry here."
    list_filter = ("actor_kind", ("at", admin.DateFieldListFilter))
    date_hierarchy = None  # it would count the months of the whole table
    fields = (
        "id", "at", "action", "actor", "target", "project", "environment", "details", "in_request",
    )  # fmt: skip

    target = timeline_column("Target", "target_id")
    project = link_column("Project", "projects_project", "project_id")
    environment = link_column("Environment", "projects_environment", "environment_id")

    in_request = timeline_column("Request", "request_id")  # `request` is unfold's

    @display(description="Detail")
    def details(self, entry: AuditEntry) -> str:
        return exact_json.dumps(entry.shown_detail)

    @display(description="Actor")
    def actor(self, entry: AuditEntry) -> str:
        if entry.actor_kind in ("account", "user", "staff"):
            return link("accounts_user", entry.actor_id, f"{entry.actor_kind} {entry.actor_id}")
        return f"{entry.actor_kind} {entry.actor_id or ''}".strip()
