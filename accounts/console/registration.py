"""Console pages of sign-up: settings of each pool, and emails. Links' details and token hashes are not shown."""

from typing import ClassVar, Final

from django.contrib import admin
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone
from unfold.decorators import display

from accounts.console.base import ConditionFilter, ReadOnlyAdmin, link_column
from accounts.models.registration import AccountEmail, PoolSettings

STATES: Final = {"sent": "success", "waiting": "info", "refused": "danger", "expired": "warning"}


class EmailStateFilter(ConditionFilter):
    title = parameter_name = "state"
    conditions: ClassVar = {
        "waiting": ("Waiting", Q(sent_at__isnull=True, failed_at__isnull=True, expires_at__gt=Now())),
        "sent": ("Sent", Q(sent_at__isnull=False)),
        "refused": ("Refused", Q(failed_at__isnull=False)),
    }


@admin.register(AccountEmail)
class AccountEmailAdmin(ReadOnlyAdmin):
    search_fields = ("=id", "=environment_id", "=project_id", "=recipient", "=user__id")
    search_help_text = "Id of the email, environment, project or user, or the whole email address"
    empty_words = (
        "Emails for sign-up, invitations, password resets and email changes are listed until their link is used."
    )
    list_display = ("id", "kind", "recipient", "pool", "state", "attempts", "created_at", "sent_at")
    list_filter = ("kind", EmailStateFilter)
    ordering = ("-created_at",)
    fields = (
        "id", "kind", "recipient", "pool", "project", "person", "state", "attempts", "next_attempt_at", "sent_at",
        "failed_at", "last_error", "created_at", "expires_at",
    )  # fmt: skip

    project = link_column("Invites into", "projects_project", "project_id", empty="no project")
    person = link_column("User", "accounts_user", "user_id", empty="no user yet")

    @display(description="State", label=STATES)
    def state(self, email: AccountEmail) -> str:
        has_expired = email.failed_at is None and email.expires_at <= timezone.now()
        return "expired" if has_expired else email.status


@admin.register(PoolSettings)
class PoolSettingsAdmin(ReadOnlyAdmin):
    search_fields = ("=environment_id", "app_name")
    search_help_text = "Environment or name of the application"
    empty_words = (
        "Sign-up is disabled in every user pool. Owners open it by PATCH /v1/auth/settings, the platform's own by "
        "manage.py sign_up_settings."
    )
    list_display = ("pool", "sign_up", "app_name", "changed_at")
    list_filter = ("sign_up",)
    ordering = ("-changed_at",)
    fields = ("pool", "sign_up", "app_name", "app_url", "link_urls", "changed_at")
