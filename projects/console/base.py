"""Shared by the pages of `/admin`: links, and confirmation of destructive actions."""

from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode


@dataclass(frozen=True, slots=True)
class AdminAction:
    """One button. `question` asks for confirmation; with `typed`, by typing the name."""

    label: str
    question: str = ""
    danger: bool = False
    typed: bool = False


def is_confirmed(request: HttpRequest, verb: AdminAction, name: str) -> bool:
    return "confirmed" in request.POST and (not verb.typed or request.POST.get("typed", "").strip() == name)


def list_url(model: str, **query: str) -> str:
    path = reverse(f"admin:{model.lower().replace('.', '_')}_changelist")
    return f"{path}?{urlencode(query)}" if query else path


def console_url(project_id: str, environment_id: str, page: str = "home", *arguments: str) -> str:
    return reverse(f"developer_console:{page}", args=[project_id, environment_id, *arguments])
