"""`branch`: preview branches of the linked project."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from platform_site.developer_cli import output, session, store
from platform_site.developer_cli.api import Answer, Api, path_part
from platform_site.developer_cli.failures import Exit, Failure
from platform_site.developer_cli.prompts import Yes, confirm

branch = typer.Typer(no_args_is_help=True, help="List, create, use, reset and delete preview branches.")

Branch = Annotated[str, typer.Argument(help="The environment's name or id.")]
POLL_SECONDS = 1.0
FIXED = ("development", "production")


@branch.command("list")
def branch_list() -> None:
    """List the project's environments, with the linked one marked."""
    api, path = session.project_environments()
    _, link = session.require_link()
    found = [{**each, "linked": each["id"] == link.environment} for each in api.get(path)["data"]]
    output.table(found, ["name", "id", "status", "schema_version", "linked"], "There are no environments.")


@branch.command("create")
def branch_create(
    name: Annotated[str, typer.Argument(help="A name such as feature/search: a-z, 0-9, and . _ / - inside.")],
    source: Annotated[str, typer.Option("--from", help="Name or id of the environment to copy.")] = "development",
    data: Annotated[bool, typer.Option("--data", help="Copy the rows too.")] = False,
    use: Annotated[bool, typer.Option("--use", help="Link this folder to the branch.")] = False,
    expires_in: Annotated[
        int | None, typer.Option(min=1, max=365, help="Days after which the branch is deleted. Default: never.")
    ] = None,
) -> None:
    """Create a preview branch and wait until it is ready."""
    api, path = session.project_environments()
    body = {"name": name, "from": source, "data": "full" if data else "none"}
    if expires_in is not None:
        body["expires_at"] = (datetime.now(UTC) + timedelta(days=expires_in)).isoformat()
    made = api.send("POST", path, body)
    made = _when_ready(api, f"{path}/{path_part(made['id'])}", made)
    if use:
        _use(made["id"])
    output.result(made, f"{made['name']} ({made['id']}) is ready.")


def _when_ready(api: Api, path: str, branch: Answer) -> Answer:
    while branch["status"] == "creating":
        time.sleep(POLL_SECONDS)
        branch = api.get(path)
    if branch["status"] != "ready" or branch.get("status_reason"):
        reason = f"{branch['name']} is {branch['status']}: {branch.get('status_reason')}"
        raise Failure(Exit.REFUSED, "branch_failed", reason)
    return branch


@branch.command("use")
def branch_use(name: Branch) -> None:
    """Link this folder to another environment of its project."""
    _, _, target = session.project_environment(name)
    _use(target["id"])
    output.result({"environment": target["id"]}, f"This folder is linked to {target['name']} ({target['id']}).")


def _use(environment_id: str) -> None:
    folder, link = session.require_link()
    store.save_link(folder, store.Link(link.url, link.project, environment_id))
    for path in sorted(folder.glob("*.json")):
        other = _environment_of_key(path)
        if other not in (None, environment_id):
            output.note(f"Warning: {path.name} holds a key of another environment ({other}).")


def _environment_of_key(path: Path) -> str | None:
    """Of a file that `platform keys create --json` wrote."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return str(found["environment_id"]) if "secret" in found else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


@branch.command("reset")
def branch_reset(
    name: Branch,
    data: Annotated[bool, typer.Option("--data", help="Copy the rows too. Without it, the tables are empty.")] = False,
    yes: Yes = False,
) -> None:
    """Replace what a preview branch has by a copy of its source, and wait until it is ready."""
    api, path, target = _chosen_branch(name)
    confirm(f"Replace the tables, rows, functions and webhooks of {target['name']} ({target['id']})?", yes)
    made = _when_ready(api, path, api.send("POST", f"{path}/reset", {"data": "full" if data else "none"}))
    output.result(made, f"{made['name']} is reset, at schema version {made['schema_version']}.")


@branch.command("delete")
def branch_delete(name: Branch, yes: Yes = False) -> None:
    """Delete a preview branch with its rows."""
    api, path, target = _chosen_branch(name)
    branches = _branches_of(target["id"])
    warning = f"{', '.join(branches)} cannot be merged or reset any more: its source is deleted." if branches else ""
    confirm(f"Delete {target['name']} ({target['id']}) with its rows? {warning}".strip(), yes)
    api.send("DELETE", path)
    if warning:
        output.note(f"Warning: {warning}")
    output.result({"id": target["id"], "deleted": True, "branches": branches}, f"{target['name']} is deleted.")


def _chosen_branch(name: str) -> tuple[Api, str, dict[str, Any]]:
    """Refused here, before the confirmation, as by the service: the two fixed environments."""
    api, path, target = session.project_environment(name)
    if target["name"] in FIXED:
        message = f"Only preview branches can be reset or deleted, not {target['name']}."
        raise Failure(Exit.CONFLICT, "conflict", message)
    return api, path, target


def _branches_of(environment_id: str) -> list[str]:
    api, path = session.project_environments()
    others = [each for each in api.get(path)["data"] if each["name"] not in FIXED]
    found = []
    for each in others:
        try:
            parent = api.get(f"{path}/{path_part(each['id'])}")["parent_id"]
        except Failure as error:
            if error.exit_code != Exit.NOT_FOUND:  # deleted since it was listed
                raise
            continue
        if parent == environment_id:
            found.append(str(each["name"]))
    return found
