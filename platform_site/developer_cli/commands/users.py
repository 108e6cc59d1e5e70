"""`users`: the users of an environment."""

from itertools import islice
from typing import Annotated, Any

import typer

from platform_site.developer_cli import output, session
from platform_site.developer_cli.api import Api, path_part
from platform_site.developer_cli.failures import Exit, Failure
from platform_site.developer_cli.prompts import Yes, confirm, secret_input_if_any
from platform_site.developer_cli.session import Environment

users = typer.Typer(no_args_is_help=True, help="List, add, change and delete the environment's users.")

User = Annotated[str, typer.Argument(help="The user's email or id (usr_…).")]
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


def _user_id(api: Api, user: str) -> str:
    if "@" not in user:
        return user
    found = list(api.pages("/users", email=user))
    if not found:
        raise Failure(Exit.NOT_FOUND, "not_found", f"There is no user {user} in this environment.")
    return str(found[0]["id"])
