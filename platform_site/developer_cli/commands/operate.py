"""`secrets`, `logs` and `branch`."""

import json
import time
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from platform_site.developer_cli import output, session, store
from platform_site.developer_cli.api import Answer, Api, path_part
from platform_site.developer_cli.commands.account import secret_input
from platform_site.developer_cli.commands.environment import Yes, confirm, log_lines
from platform_site.developer_cli.failures import Exit, Failure
from platform_site.developer_cli.session import Environment

secrets = typer.Typer(no_args_is_help=True, help="List, set and remove the secrets of a function.")
branch = typer.Typer(no_args_is_help=True, help="List, create, use, reset and delete preview branches.")

Function = Annotated[str, typer.Argument(help="The function's name.")]
Branch = Annotated[str, typer.Argument(help="The environment's name or id.")]
POLL_SECONDS = 1.0
POLLED = "/v1/logs"
FIXED = ("development", "production")
LATE_SECONDS = 30
"""Batched entries may appear this much later."""
MAX_SKIPPED = 1_000
"""Requests that are read to find some that are not of commands that follow."""


@secrets.command("list")
def secrets_list(function: Function, environment: Environment = None) -> None:
    """List the names of a function's secrets. Values are never shown."""
    api = session.environment_api(environment)
    with session.of_function(api, function) as path:
        found = api.get(path)
    output.table([{"name": name} for name in found["secrets"]], ["name"], f"{function} has no secrets.")


@secrets.command("set")
def secrets_set(
    function: Function,
    name: Annotated[str, typer.Argument(help="Capitals, digits and _, such as API_TOKEN.")],
    environment: Environment = None,
) -> None:
    """Set a secret.

    The value is read from the terminal or from standard input."""
    api = session.environment_api(environment)
    value = secret_input(name)
    with session.of_function(api, function) as path:
        api.send("PATCH", path, {"secrets": {name: value}}, authored=True)
    output.result({"function": function, "name": name, "set": True}, f"{name} of {function} is set.")


@secrets.command("remove")
def secrets_remove(
    function: Function,
    name: Annotated[str, typer.Argument(help="The secret's name.")],
    yes: Yes = False,
    environment: Environment = None,
) -> None:
    """Remove a secret, whose value is lost."""
    api = session.environment_api(environment)
    confirm(f"Remove {name} of {function}? Its value is lost.", yes)
    with session.of_function(api, function) as path:
        api.send("PATCH", path, {"secrets": {name: None}}, authored=True)
    output.result({"function": function, "name": name, "set": False}, f"{name} of {function} is removed.")


def logs(
    function: Annotated[str | None, typer.Argument(help="Print the runs of this function instead of requests.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also print new ones, until Ctrl-C.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100, help="How many requests or runs to print at first.")] = 10,
    status: Annotated[str | None, typer.Option(help="A status such as 404 or 4xx; for runs, such as failed.")] = None,
    environment: Environment = None,
) -> None:
    """Print the environment's requests, or a function's runs with their logs, oldest first.

    With --json, one JSON object on each line."""
    api = session.environment_api(environment)
    if function is None:
        _print_requests(api, follow, limit, status)
    else:
        with session.of_function(api, function) as path:
            _print_runs(api, f"{path}/runs", follow, limit, status)


def _print_requests(api: Api, follow: bool, limit: int, status: str | None) -> None:
    found = api.pages("/logs", limit=limit, status=status)
    if follow:
        found = (each for each in islice(found, MAX_SKIPPED) if each["route"] != POLLED)
    listed = list(islice(found, limit))
    passed: set[tuple[str, str]] = set()
    since = _late(listed)
    if follow and since:
        passed = {_key(each) for each in _requests(api, status, since)}
        passed -= {_key(each) for each in listed}
    while True:
        for each in reversed(listed):
            if _key(each) not in passed and not (follow and each["route"] == POLLED):
                _print_request(each)
        if not follow:
            return
        passed = {key for key in passed | set(map(_key, listed)) if key[0] >= (since or "")}
        time.sleep(POLL_SECONDS)
        listed = session.when_reachable(_requests, api, status, since)
        since = _late(listed) or since


def _requests(api: Api, status: str | None, since: str | None) -> list[dict[str, Any]]:
    return list(api.pages("/logs", limit=100, status=status, since=since))


def _key(entry: dict[str, Any]) -> tuple[str, str]:
    return str(entry["at"]), str(entry["request_id"])


def _late(listed: list[dict[str, Any]]) -> str | None:
    """By the service's clock, the time of requests whose entries may still appear."""
    if not listed:
        return None
    newest = datetime.fromisoformat(max(str(each["at"]) for each in listed))
    return (newest - timedelta(seconds=LATE_SECONDS)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _print_request(entry: dict[str, Any]) -> None:
    if output.is_json():
        output.print_json(entry, indent=None)
        return
    subject = entry["table"] or entry["function"] or ""
    error = " ".join(filter(None, [entry["code"], *(entry["field_codes"] or ())]))
    began, took = (entry["at"], entry["method"], entry["route"]), f"{entry['duration_ms']} ms"
    parts = (*began, subject, entry["status"], took, error, entry["request_id"])
    print(output.plain(" ".join(str(part) for part in parts if part)), flush=True)


def _print_runs(api: Api, path: str, follow: bool, limit: int, status: str | None) -> None:
    listed = api.get(path, limit=100, status=status)["data"]
    passed = {each["id"] for each in listed[limit:]}
    while True:
        for each in reversed(listed):
            if each["id"] not in passed and (not follow or each["status"] != "running"):
                passed.add(each["id"])
                _print_run(session.when_reachable(api.get, f"{path}/{path_part(each['id'])}"))
        if not follow:
            return
        time.sleep(POLL_SECONDS)
        listed = session.when_reachable(api.get, path, limit=100, status=status)["data"]


def _print_run(run: Answer) -> None:
    if output.is_json():
        output.print_json(run, indent=None)
        return
    duration = "" if run.get("duration_ms") is None else f" {run['duration_ms']} ms"
    print(output.plain(f"{run['started_at']} {run['id']} {run['trigger']} {run['status']}{duration}"))
    for line in log_lines(run):
        print(f"    {line}", flush=True)


def _chosen_branch(name: str) -> tuple[Api, str, dict[str, Any]]:
    """Refused here, before the confirmation, as by the service: the two fixed environments."""
    api, path, target = session.sibling(name)
    if target["name"] in FIXED:
        message = f"Only preview branches can be reset or deleted, not {target['name']}."
        raise Failure(Exit.CONFLICT, "conflict", message)
    return api, path, target


def _branches_of(environment_id: str) -> list[str]:
    api, path = session.siblings()
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


@branch.command("list")
def branch_list() -> None:
    """List the project's environments, with the linked one marked."""
    api, path = session.siblings()
    _, link = session.project_link()
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
    api, path = session.siblings()
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
    _, _, target = session.sibling(name)
    _use(target["id"])
    output.result({"environment": target["id"]}, f"This folder is linked to {target['name']} ({target['id']}).")


def _use(environment_id: str) -> None:
    folder, link = session.project_link()
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
