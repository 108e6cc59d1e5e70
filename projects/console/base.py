"""What the pages of `/admin` share: links to lists and to `/console`, and the question before a destructive action."""

from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode


@dataclass(frozen=True, slots=True)
class AdminAction:
    """One button. `question` is asked before it acts; with `typed` the answer is the thing's name, typed in full."""

    label: str
    question: str = ""
    danger: bool = False
    typed: bool = False


def is_confirmed(request: HttpRequest, verb: AdminAction, name: str) -> bool:
    return "confirmed" in request.POST and (not verb.typed or request.POST.get("typed", "").strip() == name)


def list_url(model: str, **query: str) -> str:
    """The list of a model such as `projects.Project`, filtered."""
    path = reverse(f"admin:{model.lower().replace('.', '_')}_changelist")
    return f"{path}?{urlencode(query)}" if query else path


def console_url(project_id: str, environment_id: str, page: str = "home", *arguments: str) -> str:
    """A page of `/console` about an environment. Staff are asked for a grant there (`projects.staff_access`)."""
    return reverse(f"developer_console:{page}", args=[project_id, environment_id, *arguments])
