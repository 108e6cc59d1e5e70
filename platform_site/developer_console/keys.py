from typing import Any, Final, NamedTuple

from accounts.models import ServerKey
from functions.triggers import run_as_uses
from platform_site.developer_cli import key_presets
from platform_site.developer_console.forms import expiry_of
from platform_site.developer_console.frame import Action, Console, operation
from platform_site.http.errors import ApiError


class Preset(NamedTuple):
    name: str
    title: str
    help: str


PRESETS: Final = (
    Preset("browser", "Browser", "Public. For web pages and apps, before a user signs in."),
    Preset("server", "Server", "Secret. For your own servers: rows, users, functions."),
    Preset("ci", "CI", "Secret. For deployments: schema, functions, webhooks."),
)

_EXPIRY: Final = (("", "Never"), ("30", "In 30 days"), ("90", "In 90 days"), ("365", "In 365 days"))


def panel(console: Console) -> dict[str, Any]:
    try:
        found = console.listed("/v1/keys", {"limit": "100"})
    except ApiError as refusal:
        return {"keys_refused": refusal, "presets": ()}
    uses = run_as_uses.of(console.ref, [each["id"] for each in found]) if found else {}
    for each in found:
        more = f", and so do {', '.join(uses[each['id']])}" if each["id"] in uses else ""
        each["question"] = f"Revoke the key {{}}? Programs that use it stop working at once{more}."
    return {
        "keys": found,
        "presets": PRESETS if console.may_write else (),
        "key_expiry": _EXPIRY,
        "max_key_name_length": ServerKey._meta.get_field("name").max_length,
    }


def create(console: Console) -> dict[str, Any]:
    submitted = console.request.POST
    preset = next((each for each in PRESETS if each.name == submitted.get("preset")), PRESETS[0])
    body = {
        "name": submitted.get("name", "").strip() or preset.title,
        "scopes": list(key_presets.SCOPES[preset.name]),
        "publishable": preset.name == key_presets.PUBLISHABLE,
        "environment_id": console.environment["id"],
    }
    if days := submitted.get("expires"):
        body["expires_at"] = expiry_of(days, _EXPIRY)
    return {"new_key": console.api("POST", "/v1/keys", body), "new_key_preset": preset}


ACTIONS: Final[dict[str, Action]] = {
    "create-key": create,
    "revoke-key": operation("DELETE", "keys/:key", "The key is revoked."),
}
