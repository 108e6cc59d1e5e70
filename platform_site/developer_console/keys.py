from dataclasses import dataclass
from typing import Any, Final

from platform_site.developer_console.api_calls import Refused
from platform_site.developer_console.frame import Console


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
        found = console.api("GET", "/v1/keys", query={"limit": "100"}).data["data"]
    except Refused as refusal:
        return {"keys_refused": refusal, "presets": ()}
    return {"keys": found, "presets": PRESETS if console.may_write else ()}


def change(console: Console) -> dict[str, Any]:
    asked = console.request.POST
    if asked["what"] == "revoke-key":
        console.api("DELETE", f"/v1/keys/{asked.get('key', '')}")
        return {"notice": "The key is revoked."}
    preset = next((each for each in PRESETS if each.name == asked.get("preset")), PRESETS[0])
    body = {
        "name": asked.get("name", "").strip() or preset.title,
        "scopes": list(preset.scopes),
        "publishable": preset.publishable,
        "environment_id": console.environment["id"],
    }
    return {"new_key": console.api("POST", "/v1/keys", body).data, "new_key_preset": preset}
