from dataclasses import dataclass
from typing import Any, Final

from platform_site.developer_console.api_calls import path_to
from platform_site.developer_console.frame import Console
from platform_site.http.errors import ApiError


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    title: str
    help: str
    scopes: tuple[str, ...]
    publishable: bool = False


PRESETS: Final = (
    Preset(
        "browser",
        "Browser",
        "Public. For web pages and apps, before a user signs in.",
        ("rows:read", "rows:write", "functions:invoke"),
        publishable=True,
    ),
    Preset(
        "server",
        "Server",
        "Secret. For your own servers: rows, users, functions.",
        ("rows:read", "rows:write", "functions:invoke", "users:manage"),
    ),
    Preset(
        "ci",
        "CI",
        "Secret. For deployments: schema, functions, webhooks.",
        ("schema:read", "schema:write", "functions:read", "functions:deploy", "webhooks:read", "webhooks:write"),
    ),
)


def panel(console: Console) -> dict[str, Any]:
    try:
        found = console.listed("/v1/keys", {"limit": "100"})
    except ApiError as refusal:
        return {"keys_refused": refusal, "presets": ()}
    return {"keys": found, "presets": PRESETS if console.may_write else ()}


def revoke(console: Console) -> dict[str, Any]:
    console.api("DELETE", path_to("keys", console.request.POST.get("key", "")))
    return {"notice": "The key is revoked."}


def create(console: Console) -> dict[str, Any]:
    asked = console.request.POST
    preset = next((each for each in PRESETS if each.name == asked.get("preset")), PRESETS[0])
    body = {
        "name": asked.get("name", "").strip() or preset.title,
        "scopes": list(preset.scopes),
        "publishable": preset.publishable,
        "environment_id": console.environment["id"],
    }
    return {"new_key": console.api("POST", "/v1/keys", body), "new_key_preset": preset}


CHANGES: Final = {"create-key": create, "revoke-key": revoke}
