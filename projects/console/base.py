"""Links between the pages of `/admin` and to `/console`."""

from django.urls import reverse
from django.utils.http import urlencode


def list_url(model: str, **query: str) -> str:
    path = reverse(f"admin:{model.lower().replace('.', '_')}_changelist")
    return f"{path}?{urlencode(query)}" if query else path


def console_url(project_id: str, environment_id: str, page: str = "home", *arguments: str) -> str:
    return reverse(f"developer_console:{page}", args=[project_id, environment_id, *arguments])
