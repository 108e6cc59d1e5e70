from typing import Any, Final
from urllib.parse import quote

from django.http import HttpResponse

from platform_site.developer_console.frame import Console

TABS: Final = (
    ("function", "Code"),
    ("function-runs", "Runs"),
    ("function-versions", "Versions"),
    ("function-settings", "Settings"),
)


def path_of(name: str, *rest: str) -> str:
    """An invalid name stays one segment, which the API refuses."""
    return "/".join(["/v1/functions", *(quote(part, safe="") for part in (name, *rest))])


def render(console: Console, template: str, name: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
    tabs = [(console.url(url, name), title) for url, title in TABS]
    return console.render(template, {"name": name, "tabs": tabs, **context}, status)
