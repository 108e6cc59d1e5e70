"""`types`: the TypeScript types of the tables. `dev` refreshes their file."""

import re
from pathlib import Path
from typing import Annotated

import typer

from platform_site.developer_cli import output, session, store
from platform_site.developer_cli.api import Api
from platform_site.developer_cli.failures import Failure
from platform_site.developer_cli.session import Environment

_ROLE_OF_FILE = re.compile(r'^// Tables of env_\w+ as the role "([^"\n]+)"')


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
            print("\n".join(map(output.plain, text.split("\n"))), end="")
        return
    changed = not file.exists() or file.read_bytes() != text.encode()
    if changed:
        store.write_file(file, text)
    output.result(
        {"file": str(file), "role": role, "changed": changed}, f"{file}: {'written' if changed else 'unchanged'}."
    )


def refresh(api: Api, file: Path) -> None:
    """Rewrite types.ts for its role, if `platform types` wrote it."""
    try:
        role = _ROLE_OF_FILE.search(store.read_file(file)) if file.exists() else None
        if role is not None:
            store.write_file(file, api.request("GET", "/schema/types.ts", params={"role": role[1]}).text)
            output.note(f"{file} is up to date.")
    except Failure as error:
        output.note(f"Warning: {file} is not up to date. {error.message}")
