"""`webhooks`: lists webhooks and their deliveries, sends one again, makes a new signing secret, and deletes."""

from itertools import islice
from typing import Annotated

import typer

from platform_site.developer_cli import output, session
from platform_site.developer_cli.api import Api, path_part
from platform_site.developer_cli.prompts import Yes, confirm
from platform_site.developer_cli.session import Environment

webhooks = typer.Typer(no_args_is_help=True, help="List, delete and redeliver webhooks, rotate signing secrets.")

Webhook = Annotated[str, typer.Argument(help="The webhook's name or id (wh_…).")]


@webhooks.command("list")
def webhooks_list(environment: Environment = None) -> None:
    """List the environment's webhooks with the success rate of their last 100 deliveries."""
    found = session.environment_api(environment).get("/webhooks")["data"]
    output.table(found, ["id", "name", "url", "events", "enabled", "success_rate"], "There are no webhooks.")


@webhooks.command("deliveries")
def webhooks_deliveries(
    webhook: Webhook,
    status: Annotated[
        str | None, typer.Option(help="Only those with this status, such as pending or exhausted.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 20,
    environment: Environment = None,
) -> None:
    """List a webhook's deliveries, newest first."""
    api = session.environment_api(environment)
    pages = api.pages(f"{_path(api, webhook)}/deliveries", status=status, limit=min(limit, 100))
    found = list(islice(pages, limit))
    for each in () if output.is_json() else found:
        last = each["attempts"][-1] if each["attempts"] else {}
        each |= {"attempts": len(each["attempts"]), "response": last.get("response_status") or last.get("error")}
    columns = ["id", "created_at", "event_type", "status", "attempts", "response", "next_attempt_at"]
    output.table(found, columns, "There are no deliveries.")


@webhooks.command("redeliver")
def webhooks_redeliver(
    webhook: Webhook,
    delivery: Annotated[str, typer.Argument(help="The delivery's id (dlv_…), as in `deliveries`.")],
    environment: Environment = None,
) -> None:
    """Send one delivery again, with the same id and body."""
    api = session.environment_api(environment)
    sent = api.send("POST", f"{_path(api, webhook)}/deliveries/{path_part(delivery)}/redeliver")
    output.result(sent, f"{sent['id']} is sent again.")


@webhooks.command("rotate")
def webhooks_rotate(webhook: Webhook, environment: Environment = None) -> None:
    """Make a new signing secret and print it, once. The old one signs beside it for 24 hours."""
    api = session.environment_api(environment)
    made = api.send("POST", f"{_path(api, webhook)}/rotate-secret")
    label = made.get("name") or made["url"]
    output.note(f"Store the new secret of {label} now; it is not shown again:")
    output.result(made, made["secret"])


@webhooks.command("delete")
def webhooks_delete(webhook: Webhook, yes: Yes = False, environment: Environment = None) -> None:
    """Delete a webhook and its deliveries."""
    api = session.environment_api(environment)
    path = _path(api, webhook)
    confirm(f"Delete {webhook} and its deliveries?", yes)
    api.send("DELETE", path)
    output.result({"webhook": webhook, "deleted": True}, f"{webhook} is deleted.")


def _path(api: Api, named: str) -> str:
    if not named.startswith("wh_"):
        named = session.find_named(api.get("/webhooks")["data"], named, "webhook", "in this environment")["id"]
    return f"/webhooks/{path_part(named)}"
