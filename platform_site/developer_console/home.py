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
    new_keys = {}
    if "new_key" in console.done:
        # Only in code for it: a server key in that for browsers would be published, and a CI key reads no rows.
        new_keys[f"YOUR_{console.done['new_key_preset'].name.upper()}_KEY"] = console.done["new_key"]["secret"]
    context = {
        "base_url": settings.BASE_URL,
        "codes": snippets.first_lines(console, tables[0], new_keys) if tables else [],
        "troubles": activity.troubles(console),
    }
    return console.render("console/home.html", context | keys.panel(console))
