from typing import Final

from django.conf import settings
from django.http import HttpResponse

from platform_site.developer_console import activity, keys
from platform_site.developer_console.frame import Console, page
from platform_site.developer_console.tables.pages import schema_tables
from platform_site.http import exact_json
from platform_site.http.errors import ProjectSuspended

_PLACEHOLDER: Final = "YOUR_KEY"


@page("home", keys.CHANGES)
def home(console: Console) -> HttpResponse:
    tables = _tables(console)
    return console.render(
        "console/home.html",
        {
            "base_url": settings.BASE_URL,
            "tables": tables,
            "troubles": activity.troubles(console),
            "snippets": _snippets(console, tables),
            **keys.panel(console),
        },
    )


def _tables(console: Console) -> list[str] | None:
    try:
        return list(schema_tables(console))
    except ProjectSuspended:
        return None


def _snippets(console: Console, tables: list[str] | None) -> list[tuple[str, str, str]]:
    url, table = settings.BASE_URL, (tables or ["tasks"])[0]
    key = console.done["new_key"]["secret"] if "new_key" in console.done else _PLACEHOLDER
    names = {"url": url, "key": key, "environment": console.environment["id"]}
    quoted = {name: exact_json.dumps(value) for name, value in names.items()}
    curl = f'curl "{url}/v1/rows/{table}?limit=10" \\\n  -H "Authorization: Bearer {key}"'
    client = (
        f'import {{ createClient }} from "{url}/client.js";\n\n'
        f"const client = createClient({{\n  url: {quoted['url']},\n  key: {quoted['key']},\n"
        f"  environment: {quoted['environment']},\n}});\n"
        f"const {{ data }} = await client.rows({exact_json.dumps(table)}).list({{ limit: 10 }});\nconsole.log(data);"
    )
    python = (
        f"import httpx\n\nanswer = httpx.get(\n    {exact_json.dumps(f'{url}/v1/rows/{table}')},\n"
        f'    params={{"limit": 10}},\n    headers={{"Authorization": {exact_json.dumps(f"Bearer {key}")}}},\n)\n'
        'answer.raise_for_status()\nprint(answer.json()["data"])'
    )
    return [("curl", "curl", curl), ("javascript", "client.js", client), ("python", "Python", python)]
