"""Scopes of keys by purpose. The console has the same presets (`platform_site.developer_console.keys`)."""

from typing import Final

SCOPES: Final[dict[str, tuple[str, ...]]] = {
    "browser": ("rows:read", "rows:write", "functions:invoke"),
    "server": ("rows:read", "rows:write", "functions:invoke", "users:manage"),
    "ci": (
        "environments:read",
        "functions:deploy",
        "functions:invoke",
        "functions:read",
        "projects:read",
        "rows:read",
        "schema:read",
        "schema:write",
        "webhooks:read",
        "webhooks:write",
    ),
}
PUBLISHABLE: Final = "browser"
