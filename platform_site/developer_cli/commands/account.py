"""`login`, `logout`, `status`, `init`, `link` and `open`."""

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from platform_site.developer_cli import output, session, store
from platform_site.developer_cli.api import Answer, Api, path_part
from platform_site.developer_cli.failures import Exit, Failure
from platform_site.developer_cli.prompts import secret_input

Url = Annotated[
    str | None, typer.Option("--url", help="URL of the service. Default: PLATFORM_URL, or that of the linked folder.")
]


def login(
    url: Url = None,
    email: Annotated[str | None, typer.Option(help="Your account's email.")] = None,
    token: Annotated[bool, typer.Option("--token", help="Read a key (sk_…) or access token instead.")] = False,
    browser: Annotated[bool, typer.Option("--browser", help="Use the browser also without a terminal.")] = False,
) -> None:
    """Sign in, in the browser or with --email or --token.

    The password or token is read from the terminal or standard input."""
    service = session.service_url(url)
    with store.locked():
        pass  # a folder that cannot be written is refused before a session begins
    if token:
        found = store.Credentials(store.checked_token(_secret("Token", service, url)))
        me = Api(service, found).get("/auth/me")
        found = store.Credentials(found.token, None, str(me["email"] or me["name"] or me["id"]))
    elif email is None:
        if not browser and not sys.stdin.isatty():
            raise Failure(Exit.USAGE, "no_email", "Name your account with --email, or use --browser.")
        from platform_site.developer_cli import browser_sign_in

        found = _granted(Api(service, None), browser_sign_in.sign_in)
    else:
        grant = {"grant_type": "password", "email": email, "password": _secret("Password", service, url)}
        found = _granted(Api(service, None), lambda api: api.send("POST", "/auth/token", grant), is_password=True)
    with store.locked():
        store.save_credentials(service, found)
    output.result({"url": service, "name": found.name}, f"Signed in to {service} as {found.name}.")


def _secret(kind: str, service: str, named: str | None) -> str:
    """Typed beside the service's URL. Standard input is not sent to a service that only platform.json names: that may
    be another's."""
    is_chosen = named or os.environ.get("PLATFORM_URL") or service in (session.LOCAL_URL, *store.urls())
    if not is_chosen and not sys.stdin.isatty():
        message = f"Standard input is not sent to {service}, which only {store.LINK_FILE} names."
        raise Failure(Exit.USAGE, "no_url", message, f"If it is your service, add --url {service}")
    return secret_input(f"{kind} for {service}")


def _granted(api: Api, grant: Callable[[Api], Answer], *, is_password: bool = False) -> store.Credentials:
    try:
        tokens = grant(api)
    except Failure as error:
        if error.code == "invalid_grant":
            error.exit_code = Exit.CREDENTIALS
            if is_password and not error.fields:
                error.message = "The email or the password is wrong."
        raise
    return store.Credentials(tokens["access_token"], tokens["refresh_token"], tokens["user"]["email"])


def logout(url: Url = None) -> None:
    """End the session and remove its credentials from this machine."""
    service = session.service_url(url)
    found = store.credentials(service)
    ended = False
    if found is not None and found.refresh_token:
        try:
            Api(service, found).send("POST", "/auth/revoke", {"scope": "current"})
            ended = True
        except Failure as error:
            output.note(f"The session may still be valid: {error.message}")
    with store.locked():
        store.save_credentials(service, None)
    output.result({"url": service, "session_ended": ended}, f"Signed out of {service}.")


def status() -> None:
    """Show the service, your account, and the project and environment that commands here use."""
    api = session.account_api()
    me = api.get("/auth/me")
    linked = session.link_to(api.url)
    found: dict[str, Any] = {"url": api.url, "account": me["email"] or me["name"] or me["id"]}
    if linked is not None:
        found |= _linked(api, linked)
    output.result(found, *(f"{name}: {_shown(value)}" for name, value in found.items()))
    if "project" not in found:
        output.note(f"No link to this service here. Run: platform link PROJECT --url {api.url}")


def _shown(value: str | dict[str, str | None]) -> str | None:
    if isinstance(value, str):
        return value
    return f"{value['name']} ({value['id']})" if value["name"] else value["id"]


def _linked(api: Api, linked: store.Link) -> dict[str, dict[str, str | None]]:
    """The project and environment; without names if the caller may not read them, such as a server key."""
    try:
        project: dict[str, Any] = api.get(f"/projects/{path_part(linked.project)}")
        environment = session.find_named(project["environments"], linked.environment, "environment", "in the project")
    except Failure as error:
        if error.code != "forbidden":
            raise
        project, environment = ({"id": each, "name": None} for each in (linked.project, linked.environment))
    found = {"project": project, "environment": environment}
    return {kind: {"id": each["id"], "name": each["name"]} for kind, each in found.items()}


def link(
    project: Annotated[str | None, typer.Argument(help="The project's name or id. Default: your only one.")] = None,
    environment: Annotated[
        str, typer.Option("--environment", "-e", help="The environment's name or id.")
    ] = "development",
    url: Url = None,
) -> None:
    """Link this folder to an environment, which commands in it and below then use.

    Writes platform.json, which has no secret."""
    api = session.account_api(url)
    projects = list(api.pages("/projects", limit=100))
    if project is None:
        project = _only(projects)
    target = session.find_named(projects, project, "project", f"that you may see at {api.url}")
    found = session.find_named(
        session.environments(api, target["id"]), environment, "environment", f"in project {target['name']}"
    )
    made = store.Link(api.url, target["id"], found["id"])
    path = store.save_link(Path.cwd(), made)
    text = f"Linked {path.parent} to {target['name']}, {found['name']} ({found['id']})."
    output.result({**asdict(made), "file": str(path)}, text)


def init(
    name: Annotated[str, typer.Argument(help="The name of the new project.")],
    region: Annotated[str | None, typer.Option(help="Such as us-east-1. Default: the service's.")] = None,
    url: Url = None,
) -> None:
    """Create a project, link this folder to its development environment, and write an empty backend/schema.json."""
    here = Path.cwd()
    if (here / store.LINK_FILE).exists():
        raise Failure(Exit.CONFLICT, "linked", f"This folder has a {store.LINK_FILE}.", "Use another folder.")
    if not os.access(here, os.W_OK):  # before there is a project
        raise Failure(Exit.USAGE, "file_error", f"{here} cannot be written.")
    api = session.account_api(url)
    made = api.send("POST", "/projects", {"name": name, **({"region": region} if region else {})})
    environment = session.find_named(made["environments"], "development", "environment", "in the new project")
    store.save_link(here, store.Link(api.url, made["id"], environment["id"]))
    schema = here / "backend" / "schema.json"
    if not schema.exists():
        store.write_file(schema, '{\n  "tables": {}\n}\n')
    output.result(
        {"url": api.url, "project": made["id"], "environment": environment["id"]},
        f"Created {made['name']} ({made['id']}). Describe your tables in backend/schema.json, then run: platform dev",
    )


def _only(projects: list[dict[str, Any]]) -> str:
    if len(projects) == 1:
        return str(projects[0]["id"])
    names = ", ".join(f"{each['name']} ({each['id']})" for each in projects)
    if not projects:
        raise Failure(Exit.NOT_FOUND, "no_project", "You have no project yet.", "Create one: platform init NAME")
    raise Failure(Exit.USAGE, "ambiguous", "You have several projects.", f"Name one of: {names}")


def open_page(
    docs: Annotated[bool, typer.Option("--docs", help="Open the API documentation.")] = False,
    url: Url = None,
) -> None:
    """Open the linked environment in the service's console.

    In a pipe, only the URL is printed."""
    service = session.service_url(url)
    page = service + ("/docs" if docs else "/console/")
    linked = session.link_to(service)
    if not docs and linked is not None:
        page += f"{linked.project}/{linked.environment}/"
    output.result({"url": page}, page)
    if output.is_terminal():
        import webbrowser

        webbrowser.open(page)
