"""`invoke`, `functions`, and `secrets` of a function."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from platform_site.developer_cli import output, session, store
from platform_site.developer_cli.api import Answer, Api, path_part
from platform_site.developer_cli.commands.logs import log_lines
from platform_site.developer_cli.failures import Exit, Failure
from platform_site.developer_cli.prompts import Yes, confirm, secret_input
from platform_site.developer_cli.session import Environment

functions = typer.Typer(no_args_is_help=True, help="List and delete functions.")
secrets = typer.Typer(no_args_is_help=True, help="List, set and remove the secrets of a function.")

Function = Annotated[str, typer.Argument(help="The function's name.")]


def invoke(
    name: Annotated[str, typer.Argument(help="The function's name.")],
    input: Annotated[str, typer.Argument(help="JSON, @FILE to read a file, or - for standard input.")] = "{}",
    is_async: Annotated[bool, typer.Option("--async", help="Queue the run and print its id.")] = False,
    environment: Environment = None,
) -> None:
    """Run a function and print its output.

    If it fails, its log is printed too, and the exit code is 1."""
    body = {"input": json_input(input), **({"async": True} if is_async else {})}
    api = session.environment_api(environment)
    with session.path_of_function(api, name) as path:
        answer = _run(api, f"{path}/invoke", body)
    is_failed = answer["status"] == "failed"
    if output.is_json():
        output.print_json(answer)
    elif is_failed:
        output.note(f"{name} failed: {answer.get('error')}")
        _print_log(api, name, answer["run_id"])
    elif is_async or "output" not in answer:
        print(output.plain(answer["run_id"]))
    else:
        output.print_json(answer["output"])
    if is_failed:
        raise typer.Exit(Exit.FUNCTION_FAILED)


def _run(api: Api, path: str, body: dict[str, Any]) -> Answer:
    try:
        return api.send("POST", path, body)
    except Failure as failure:
        if failure.code != "function_timeout":
            raise
        return Answer(run_id=failure.run_id, status="failed", error=failure.message)


def json_input(text: str) -> Any:
    """JSON from an argument, `@file`, or standard input for `-`."""
    source = "INPUT"
    if text == "-":
        source, text = "standard input", sys.stdin.read()
    elif text.startswith("@"):
        source = text[1:]
        text = store.read_file(Path(source))
    try:
        return json.loads(text)
    except ValueError as error:
        raise Failure(Exit.USAGE, "invalid_json", f"{source} is not JSON: {error}.") from None


def _print_log(api: Api, name: str, run_id: str) -> None:
    try:
        run = api.get(f"/functions/{path_part(name)}/runs/{path_part(run_id)}")
    except Failure:
        return  # the log needs functions:read, which a key may lack
    for line in log_lines(run):
        print(line, file=sys.stderr)


@functions.command("list")
def functions_list(environment: Environment = None) -> None:
    """List the environment's functions."""
    found = session.environment_api(environment).pages("/functions")
    columns = ["name", "active_version", "schedule", "schedule_stopped", "on", "on_stopped", "updated_at"]
    output.table(list(found), columns, "There are no functions.")


@functions.command("delete")
def functions_delete(function: Function, yes: Yes = False, environment: Environment = None) -> None:
    """Delete a function with its versions, secrets, schedule and inbound endpoints."""
    api = session.environment_api(environment)
    confirm(f"Delete {function} with its versions, secrets, schedule and inbound endpoints?", yes)
    with session.path_of_function(api, function) as path:
        api.send("DELETE", path)
    output.result({"name": function, "deleted": True}, f"{function} is deleted.")


@secrets.command("list")
def secrets_list(function: Function, environment: Environment = None) -> None:
    """List the names of a function's secrets. Values are never shown."""
    api = session.environment_api(environment)
    with session.path_of_function(api, function) as path:
        found = api.get(path)
    unset = found.get("unset_secrets", [])
    rows = [{"name": name, "set": name not in unset} for name in found["secrets"]]
    output.table(rows, ["name", "set"], f"{function} has no secrets.")
    if unset:
        output.note(f"No value in this environment: {', '.join(unset)}. Set it with `platform secrets set`.")


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
    with session.path_of_function(api, function) as path:
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
    with session.path_of_function(api, function) as path:
        api.send("PATCH", path, {"secrets": {name: None}}, authored=True)
    output.result({"function": function, "name": name, "set": False}, f"{name} of {function} is removed.")
