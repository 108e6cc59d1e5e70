"""`keys`: the keys of an environment."""

from typing import Annotated, Any

import typer

from platform_site.developer_cli import key_presets, output, session
from platform_site.developer_cli.api import Api, path_part
from platform_site.developer_cli.failures import Exit, Failure
from platform_site.developer_cli.prompts import Yes, confirm
from platform_site.developer_cli.session import Environment

keys = typer.Typer(no_args_is_help=True, help="List, create and revoke keys.")


@keys.command("list")
def keys_list(environment: Environment = None) -> None:
    """List the environment's keys. Secrets are not shown."""
    api = session.environment_api(environment)
    output.table(
        _listed(api), ["id", "name", "prefix", "publishable", "last_used_at", "expires_at"], "There are no keys."
    )


@keys.command("create")
def keys_create(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    preset: Annotated[str | None, typer.Option(help="Instead of --scope: browser (publishable), server or ci.")] = None,
    scope: Annotated[list[str] | None, typer.Option(help="A scope such as rows:read. Repeat it for several.")] = None,
    publishable: Annotated[bool, typer.Option("--publishable", help="A key that a web page may contain.")] = False,
    environment: Environment = None,
) -> None:
    """Create a key and print its secret, which is shown once."""
    if preset is not None and preset not in key_presets.SCOPES:
        known = ", ".join(key_presets.SCOPES)
        raise Failure(Exit.USAGE, "unknown_preset", f'There is no preset "{preset}".', f"Use: {known}")
    if (preset is None) == (not scope):
        presets = f"Presets: {', '.join(key_presets.SCOPES)}"
        raise Failure(Exit.USAGE, "no_scope", "Use either --preset or --scope.", presets)
    api = session.environment_api(environment)
    scopes = list(key_presets.SCOPES[preset] if preset else scope or [])
    body: dict[str, Any] = {
        "name": name,
        "scopes": scopes,
        "publishable": publishable or preset == key_presets.PUBLISHABLE,
    }
    if api.environment:
        body["environment_id"] = api.environment
    made = api.send("POST", "/keys", body)
    output.note(f"{made['id']} {made['name']}. Store the secret now; it is not shown again:")
    output.result(made, made["secret"])


@keys.command("revoke")
def keys_revoke(
    key: Annotated[str, typer.Argument(help="The key's name or id (key_…).")],
    yes: Yes = False,
    environment: Environment = None,
) -> None:
    """Revoke a key. It stops working at once."""
    api = session.environment_api(environment)
    named = None if key.startswith("key_") else session.find_named(_listed(api), key, "key", "in this environment")
    key_id = named["id"] if named else key
    uses = _uses(api, key_id)
    more = f", and so do {', '.join(uses)}" if uses else ""
    confirm(f"Revoke {f'{key} ({key_id})' if named else key_id}? It stops working at once{more}.", yes)
    api.send("DELETE", f"/keys/{path_part(key_id)}")
    stopped = f" This stopped {', '.join(uses)}." if uses else ""
    output.result({"id": key_id, "revoked": True, "stopped": uses}, f"{key_id} is revoked.{stopped}")


def _listed(api: Api) -> list[dict[str, Any]]:
    return [each for each in api.pages("/keys", limit=100) if api.environment in (None, each["environment_id"])]


def _uses(api: Api, key_id: str) -> list[str]:
    """What runs as the key; nothing if the caller may not read functions."""
    found = []
    try:
        for each in api.pages("/functions", limit=100):
            kinds = {"the schedule": each["scheduled_as"], "the event triggers": each["on_as"]}
            kinds |= dict.fromkeys(["inbound endpoints"] if key_id in each.get("inbound_as", ()) else [], key_id)
            found += [f"{kind} of {each['name']}" for kind, runs_as in kinds.items() if runs_as == key_id]
    except Failure:
        return []
    return found
