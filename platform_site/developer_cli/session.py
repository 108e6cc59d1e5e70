import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from platform_site.developer_cli import output, store
from platform_site.developer_cli.api import Api, path_part
from platform_site.developer_cli.failures import Exit, Failure

LOCAL_URL = "http://127.0.0.1:8000"
RETRY_SECONDS = 2.0
Environment = Annotated[
    str | None, typer.Option("--environment", "-e", help="Name or id of an environment, instead of the linked one.")
]


def service_url(given: str | None = None) -> str:
    """The option, PLATFORM_URL, the link, or the only service with credentials; else localhost."""
    if found := given or os.environ.get("PLATFORM_URL"):
        return store.origin_of(found)
    if linked := store.find_link():
        return store.origin_of(linked[1].url)
    known = store.urls()
    return known[0] if len(known) == 1 else LOCAL_URL


def credentials(url: str) -> store.Credentials:
    """PLATFORM_TOKEN with PLATFORM_URL; else stored ones."""
    if token := os.environ.get("PLATFORM_TOKEN"):
        named = os.environ.get("PLATFORM_URL")
        if not named or store.origin_of(named) != url:
            raise Failure(
                Exit.USAGE,
                "no_url",
                f"PLATFORM_TOKEN is not sent to {url}.",
                "Set PLATFORM_URL to its service as well.",
            )
        return store.Credentials(store.checked_token(token))
    found = store.credentials(url)
    if found is None:
        other = " or with the URL of another service" if url == LOCAL_URL else ""
        hint = f"Run: platform login --url {url}{other}"
        raise Failure(Exit.CREDENTIALS, "not_signed_in", f"You are not signed in to {url}.", hint)
    return found


Result = TypeVar("Result")


def when_reachable(call: Callable[..., Result], *arguments: Any, **more: Any) -> Result:
    """What `call` returns, as soon as the service answers. The first error is printed."""
    waiting = False
    while True:
        try:
            return call(*arguments, **more)
        except Failure as error:
            if error.exit_code != Exit.UNREACHABLE:
                raise
            if not waiting:
                output.failure(error)
            waiting = True
            time.sleep(RETRY_SECONDS)


def account_api(url: str | None = None) -> Api:
    service = service_url(url)
    return Api(service, credentials(service))


def require_link() -> tuple[Path, store.Link]:
    found = store.find_link()
    if found is None:
        raise Failure(
            Exit.USAGE, "not_linked", f"No {store.LINK_FILE} here or in a folder above.", "Run: platform link PROJECT"
        )
    return found


def link_to(service: str) -> store.Link | None:
    """The folder's link, unless it is to another service."""
    found = store.find_link()
    return found[1] if found is not None and store.origin_of(found[1].url) == service else None


def environments(api: Api, project: str) -> list[dict[str, Any]]:
    return list(api.get(f"/projects/{path_part(project)}/environments")["data"])


def project_environments() -> tuple[Api, str]:
    """The API, and the path of the linked project's environments."""
    _, link = require_link()
    return account_api(link.url), f"/projects/{path_part(link.project)}/environments"


def project_environment(name: str) -> tuple[Api, str, dict[str, Any]]:
    """The API, the path of an environment of the linked project, and the environment."""
    api, path = project_environments()
    target = find_named(api.get(path)["data"], name, "environment", "in this project")
    return api, f"{path}/{path_part(target['id'])}", target


def target_name(api: Api) -> str:
    """`production of Shop`, if the caller may read the names; else the id."""
    if (linked := link_to(api.url)) is not None:
        with suppress(Failure):
            project = api.get(f"/projects/{path_part(linked.project)}")
            for each in project["environments"]:
                if each["id"] == api.environment:
                    return f"{each['name']} of {project['name']}"
    return api.environment or "the key's environment"


def find_named(entries: list[dict[str, Any]], given: str, kind: str, where: str) -> dict[str, Any]:
    """The entry with this id or name. Raises Failure with similar names."""
    matching = [each for each in entries if each["id"] == given] or [each for each in entries if each["name"] == given]
    if len(matching) == 1:
        return matching[0]
    if matching:
        ids = ", ".join(each["id"] for each in matching)
        raise Failure(Exit.USAGE, "ambiguous", f'Several {kind}s are named "{given}": {ids}.', "Use an id.")
    names = [str(each["name"] or each["id"]) for each in entries]
    near = [name for name in names if name.startswith(given)] or get_close_matches(given, names, n=1)
    message = f'There is no {kind} "{given}" {where}.' + (f' Did you mean "{near[0]}"?' if len(near) == 1 else "")
    raise Failure(Exit.NOT_FOUND, "not_found", message, f"You can use: {', '.join(names) or 'none'}")


@contextmanager
def path_of_function(api: Api, name: str) -> Iterator[str]:
    """The function's path. If there is none, the error names those that are there."""
    try:
        yield f"/functions/{path_part(name)}"
    except Failure as error:
        found: list[dict[str, Any]] = []
        if error.exit_code == Exit.NOT_FOUND:
            with suppress(Failure):  # a key may not list them
                found = [{"id": it["name"], "name": it["name"]} for it in api.pages("/functions", limit=100)]
        if found:
            find_named(found, name, "function", "in this environment")
        raise


def is_production(api: Api) -> bool:
    """Whether the target is `production`. Also true if this cannot be known, as for a key without a link."""
    known: dict[str | None, str] = {}
    if (linked := link_to(api.url)) is not None:
        with suppress(Failure):
            known = {each["id"]: each["name"] for each in environments(api, linked.project)}
    return bool(known.get(api.environment, "production") == "production")


def environment_api(given: str | None) -> Api:
    url = service_url()
    linked = link_to(url)
    api = account_api()
    if given is not None and store.is_id(given):
        api.environment = given
    elif given is not None:
        if linked is None:
            require_link()
            raise Failure(Exit.USAGE, "other_service", f"The link here is not for {url}.", "Use the environment's id.")
        named = find_named(environments(api, linked.project), given, "environment", "in this project")
        api.environment = named["id"]
    elif linked is not None:
        api.environment = linked.environment
    elif "PLATFORM_TOKEN" not in os.environ:
        require_link()
    return api
