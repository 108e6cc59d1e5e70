"""Every page of the members' console, at the demo's project."""

from tests.support.service import Up

_PAGES = {
    "search": "search?q=task",
    "home": "",
    "activity": "activity",
    "table": "tables/tasks",
    "filter": "tables/tasks?where=%7B",
    "seen-as": "tables/tasks?as=anonymous",
    "table-api": "tables/tasks/api",
    "schema": "schema",
    "diagram": "schema/diagram",
    "settings": "settings",
    "functions": "functions/",
    "function": "functions/sum",
    "function-runs": "functions/sum/runs",
    "function-versions": "functions/sum/versions",
    "function-settings": "functions/sum/settings",
    "webhooks": "webhooks/",
    "webhook": "webhooks/{webhook}",
    "deliveries": "webhooks/{webhook}/deliveries",
    "users": "auth/",
    "user": "auth/users/{user}",
    "invitations": "auth/invitations",
    "sign-up": "auth/sign-up",
    "providers": "auth/providers",
    "logs": "logs",
    "logs-error": "logs?status=nine",
    "audit": "logs/audit",
    "timeline": "logs/timeline",
    "sessions": "sessions",
    "branches": "branches/",
    "merge": "branches/merge",
}


def pages_of(served: Up) -> dict[str, str]:
    """Paths below the environment's, by the name of their screenshot."""
    ids = {"webhook": served.facts["webhook"]["id"], "user": served.facts["app_users"][0]["id"]}
    return {name: path.format(**ids) for name, path in _PAGES.items()}
