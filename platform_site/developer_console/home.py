from django.conf import settings
from django.http import HttpResponse

from platform_site.developer_console import activity, keys
from platform_site.developer_console.frame import Console, page
from platform_site.developer_console.tables import snippets
from platform_site.developer_console.tables.pages import schema_tables
from platform_site.http.errors import ProjectSuspended


@page("home", keys.ACTIONS)
def home(console: Console) -> HttpResponse:
    try:
        tables = list(schema_tables(console))
    except ProjectSuspended:
        tables = ["tasks"]
    new_key = console.done.get("new_key", {}).get("secret", "")
    context = {
        "base_url": settings.BASE_URL,
        "codes": snippets.first_lines(console, tables[0], new_key) if tables else [],
        "troubles": activity.troubles(console),
    }
    return console.render("console/home.html", context | keys.panel(console))
