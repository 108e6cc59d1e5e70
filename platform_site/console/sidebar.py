"""The sidebar and account menu of `/admin` (`settings.UNFOLD`), without pages that the person may not see."""

from functools import cache
from typing import Any, Final

from django.apps import apps
from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse

from accounts.console.base import list_url

_SIDEBAR: Final = (
    ("Projects", (("Projects", "folder_open", "projects.Project"), ("Environments", "dns", "projects.Environment"),
                  ("Members", "group", "projects.Member"))),
    ("Auth", (("Users", "person", "accounts.User"), ("Sessions", "devices", "accounts.Session"),
             ("API keys", "key", "accounts.ServerKey"), ("Signing keys", "verified_user", "accounts.SigningKey"),
             ("Identity providers", "passkey", "accounts.IdentityProvider"),
             ("Linked identities", "link", "accounts.Identity"), ("Redirect URIs", "alt_route", "accounts.RedirectUri"),
             ("Sign-up", "person_add", "accounts.PoolSettings"), ("Emails", "mail", "accounts.AccountEmail"))),
    ("Metrics", (("Endpoints", "speed", "platform_site.EndpointMetric"),
                 ("Regions", "public", "platform_site.RegionMetric"),
                 ("Slow functions", "hourglass_top", "platform_site.FunctionMetric"),
                 ("Rate-limited callers", "block", "platform_site.RateLimitedCaller"))),
    ("Audit", (("Audit log", "history", "accounts.AuditEntry"),)),
)  # fmt: skip


def navigation(request: HttpRequest) -> list[dict[str, Any]]:
    top = [
        {"title": "Dashboard", "icon": "dashboard", "link": reverse("admin:index")},
        {"title": "Timeline", "icon": "timeline", "link": reverse("console:timeline")},
    ]
    groups: list[dict[str, Any]] = [{"items": top}]
    for title, entries in _SIDEBAR:
        items = [
            {"title": name, "icon": icon, "link": link}
            for name, icon, label in entries
            if (link := list_of(request, label)) is not None
        ]
        if title == "Projects":
            items.append(
                {"title": "Orphaned schemas", "icon": "folder_off", "link": reverse("console:orphaned_schemas")}
            )
        if items:
            groups.append({"title": title, "separator": True, "items": items})
    return groups


def list_of(request: HttpRequest, label: str, /, **query: str) -> str | None:
    """The URL of a model's list; None if the person may not see it."""
    page = admin.site.get_model_admin(apps.get_model(label))
    return list_url(label, **query) if page.has_view_permission(request) else None


@cache
def list_names() -> dict[str, str]:
    """By the URL of the list."""
    return {list_url(label): name for _, entries in _SIDEBAR for name, _, label in entries}


def account_links(request: HttpRequest) -> list[dict[str, Any]]:
    return [
        {"title": "Account security", "link": reverse("staff:security")},
        {"title": "Change password", "link": reverse("admin:password_change")},
    ]
