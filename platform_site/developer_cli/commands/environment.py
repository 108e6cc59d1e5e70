"""Commands on one environment: `types`, `invoke`, `keys` and `users`."""

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from platform_site.developer_cli import key_presets, output, session, store
from platform_site.developer_cli.api import path_part
from platform_site.developer_cli.commands.account import secret_input_if_any
from platform_site.developer_cli.failures import Exit, Failure
from platform_site.developer_cli.session import Environment

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
User = Annotated[str, typer.Argument(help="The user's email or id (usr_…).")]

keys = typer.Typer(no_args_is_help=True, help="List, create and revoke keys.")
users = typer.Typer(no_args_is_help=True, help="List, add, change and delete the environment's users.")


def types(
    file: Annotated[Path, typer.Option("--out", "-o", help="The file to write; - for standard output.")] = Path(
        "types.ts"
    ),
    role: Annotated[
        str, typer.Option(help="A role of the schema's rules. Types have what it may read and write.")
    ] = "user",
    environment: Environment = None,
) -> None:
    """Write types.ts: the TypeScript types of the environment's tables."""
    api = session.environment_api(environment)
    text = api.request("GET", "/schema/types.ts", params={"role": role}).text
    if str(file) == "-":
        if output.is_json():
            output.print_json({"types": text})
        else:
            print(text, end="")
        return
    changed = not file.exists() or file.read_bytes() != text.encode()
    if changed:
        store.write_file(file, text)
    output.result(
        {"file": str(file), "role": role, "changed": changed}, f"{file}: {'written' if changed else 'unchanged'}."
    )


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
    with session.of_function(api, name) as path:
        answer = api.send("POST", f"{path}/invoke", body)
    if output.is_json():
        output.print_json(answer)
    elif is_async or "output" not in answer and answer["status"] != "failed":
        print(output.plain(answer["run_id"]))
    elif answer["status"] != "failed":
        output.print_json(answer["output"])
    if answer["status"] == "failed":
        if not output.is_json():
            output.note(f"{name} failed: {answer.get('error')}")
            _print_log(api, name, answer["run_id"])
        raise typer.Exit(Exit.FUNCTION_FAILED)


def _print_log(api: Any, name: str, run_id: str) -> None:
    try:
        run = api.get(f"/functions/{path_part(name)}/runs/{path_part(run_id)}")
    except Failure:
        return  # the log needs functions:read, which a key may lack
    for line in log_lines(run):
        print(line, file=sys.stderr)


def log_lines(run: dict[str, Any]) -> list[str]:
    """The log of a run, and its error's stack, as they are printed."""
    logged = [output.indented(f"{each['at']} {each['level']} {each['text']}") for each in run["logs"]]
    return [*logged, *(f"    {output.plain(line)}" for line in (run.get("stack") or "").splitlines())]


@keys.command("list")
def keys_list(environment: Environment = None) -> None:
    """List the environment's keys. Secrets are not shown."""
    api = session.environment_api(environment)
    found = [
        each
        for each in api.pages("/keys", limit=100)
        if each["environment_id"] == (api.environment or each["environment_id"])
    ]
    output.table(found, ["id", "name", "prefix", "publishable", "last_used_at", "expires_at"], "There are no keys.")


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
    key_id: Annotated[str, typer.Argument(help="The key's id (key_…), as in the list.")],
    yes: Yes = False,
    environment: Environment = None,
) -> None:
    """Revoke a key. It stops working at once."""
    api = session.environment_api(environment)
    confirm(f"Revoke {key_id}? It stops working at once.", yes)
    api.send("DELETE", f"/keys/{path_part(key_id)}")
    output.result({"id": key_id, "revoked": True}, f"{key_id} is revoked.")


_USER_COLUMNS = ["id", "email", "name", "role", "disabled_at", "created_at"]


@users.command("list")
def users_list(
    email: Annotated[str | None, typer.Option(help="Only the user with this email.")] = None,
    search: Annotated[str | None, typer.Option(help="Only those whose email or name begins with this.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 100,
    environment: Environment = None,
) -> None:
    """List users, newest first."""
    found = session.environment_api(environment).pages("/users", email=email, search=search, limit=min(limit, 100))
    rows = list(islice(found, limit))
    if not output.is_json():
        rows = [{**each, "role": each["role"] or "user"} for each in rows]
    output.table(rows, _USER_COLUMNS, "There are no users.")


@users.command("add")
def users_add(
    email: Annotated[str, typer.Argument(help="The user's email.")],
    name: Annotated[str | None, typer.Option(help="The user's name.")] = None,
    role: Annotated[str | None, typer.Option(help="A role of the schema's rules.")] = None,
    no_password: Annotated[
        bool, typer.Option("--no-password", help="Without a password: a reset or a provider lets the user in.")
    ] = False,
    environment: Environment = None,
) -> None:
    """Add a user.

    The password is read from the terminal or from standard input; without input there is none."""
    body = {"email": email, "name": name, "role": role}
    if not no_password:
        body["password"] = secret_input_if_any("Password")
    api = session.environment_api(environment)
    made = api.send("POST", "/users", {field: value for field, value in body.items() if value is not None})
    output.result(made, f"{made['id']} {made['email']}")
    if not no_password and body["password"] is None:
        output.note("The user has no password.")


@users.command("set")
def users_set(
    user: User,
    name: Annotated[str | None, typer.Option(help="The new name.")] = None,
    role: Annotated[str | None, typer.Option(help='The new role; "" removes it.')] = None,
    disabled: Annotated[bool | None, typer.Option("--disable/--enable", help="Whether the user may sign in.")] = None,
    environment: Environment = None,
) -> None:
    """Change a user's name, role, or whether the user may sign in."""
    body: dict[str, Any] = {"name": name, "disabled": disabled}
    body = {field: value for field, value in body.items() if value is not None}
    if role is not None:
        body["role"] = role or None
    if not body:
        raise Failure(Exit.USAGE, "nothing_to_change", "Name a change: --name, --role, --disable or --enable.")
    api = session.environment_api(environment)
    changed = api.send("PATCH", f"/users/{path_part(_user_id(api, user))}", body)
    output.result(changed, f"{changed['id']} {changed['email']} is changed.")


@users.command("delete")
def users_delete(user: User, yes: Yes = False, environment: Environment = None) -> None:
    """Delete a user, and rows as the schema's `on_delete` says."""
    api = session.environment_api(environment)
    user_id = _user_id(api, user)
    confirm(f"Delete {user}?", yes)
    api.send("DELETE", f"/users/{path_part(user_id)}")
    output.result({"id": user_id, "deleted": True}, f"{user} is deleted.")


def _user_id(api: Any, user: str) -> str:
    if "@" not in user:
        return user
    found = list(api.pages("/users", email=user))
    if not found:
        raise Failure(Exit.NOT_FOUND, "not_found", f"There is no user {user} in this environment.")
    return str(found[0]["id"])


def confirm(question: str, yes: bool) -> None:
    """Ask in a terminal; elsewhere `--yes` is needed."""
    if yes:
        return
    if not output.is_terminal():
        raise Failure(Exit.USAGE, "unconfirmed", question, "Repeat the command with --yes.")
    if not output.asks(question):
        output.note("Nothing was changed.")
        raise typer.Exit(Exit.USAGE)
