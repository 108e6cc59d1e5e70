"""`dev`: watches `backend/` and pushes each saved file."""

import dataclasses
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from platform_site.developer_cli import backend_files, output, planning, session
from platform_site.developer_cli.api import Api
from platform_site.developer_cli.backend_files import Backend
from platform_site.developer_cli.commands import table_types
from platform_site.developer_cli.commands.backend import Folder, backend_folder
from platform_site.developer_cli.failures import Exit, Failure
from platform_site.developer_cli.session import Environment

POLL_SECONDS = 0.15

Seen = dict[Path, tuple[int, int]]


def dev(folder: Folder = Path("backend"), environment: Environment = None) -> None:
    """Push backend/, then each file that you save, until Ctrl-C.

    Changes that must be confirmed are left to `platform push`."""
    api = session.environment_api(environment)
    folder = backend_folder(folder)
    backend_files.check_folder(folder)
    if not output.is_json():
        output.note(f"Watching {folder} for {session.target_name(api)}. Stop with Ctrl-C.")
    done: Seen = {folder: (0, 0)}  # no scan equals it: the first one is always pushed
    failed: set[Path] = set()
    """Files whose push was refused. They are pushed again with the next ones."""
    while True:
        seen = _scan(folder)
        time.sleep(POLL_SECONDS)
        if seen == done or seen != _scan(folder):
            continue
        for name in sorted(_functions(done) - _functions(seen)):
            output.note(f"Function {name} stays in the environment. Delete it: platform functions delete {name}")
        saved = {path for path in seen.keys() | done.keys() if seen.get(path) != done.get(path)}
        done, earlier = seen, failed - saved
        error = _try_push(api, folder, earlier | saved)
        if error is None:
            failed = set()
        elif earlier and _try_push(api, folder, saved, printed=error) is None:  # earlier ones do not block others
            failed = earlier
        else:
            failed = earlier | saved


def _scan(folder: Path) -> Seen:
    """Time of change (also of its permissions) and size of each file, pushed when two scans agree: not while it is
    being written."""
    found: Seen = {}
    for path in [*folder.glob("*.json"), *folder.glob("functions/*.[tj]s")]:
        with suppress(OSError):  # an editor replaces it, or the folder cannot be read
            status = path.stat()
            found[path] = (status.st_ctime_ns, status.st_size)
    return found


def _functions(seen: Seen) -> set[str]:
    return {path.stem for path in seen if path.suffix in (".ts", ".js")}


def _try_push(api: Api, folder: Path, changed: set[Path], *, printed: Failure | None = None) -> Failure | None:
    """Push these files; returns the error, if any. Prints the changes, or the error unless it is the `printed` one.
    Waits for an unavailable service. Raises Failure if no later push could succeed."""
    begun = time.monotonic()
    try:
        changes = session.when_reachable(_push, api, folder, changed)
    except Failure as error:
        if error.exit_code in (Exit.CREDENTIALS, Exit.NOT_FOUND, Exit.INTERRUPTED):
            raise
        if printed is None or printed.message != error.message or printed.fields != error.fields:
            output.failure(error)
        return error
    seconds = time.monotonic() - begun
    if output.is_json():
        output.print_json({"changes": changes, "seconds": round(seconds, 3)}, indent=None)
    for each in changes if not output.is_json() else []:
        print(output.plain(f"{each['change']} ({seconds:.1f} s)"), flush=True)
    return None


def _push(api: Api, folder: Path, changed: set[Path]) -> list[dict[str, Any]]:
    plan = planning.make(api, _only(backend_files.read(folder), folder, changed))
    for warning in plan.warnings:
        output.note(f"Warning: {warning}")
    if unconfirmed := plan.unconfirmed():
        options = " ".join(f'--confirm "{each}"' for each in unconfirmed)
        raise Failure(
            Exit.USAGE,
            "unconfirmed",
            f"This must be confirmed: {'; '.join(unconfirmed)}.",
            f"Run: platform push {options}",
        )
    if plan.webhooks.local_urls and session.is_production(api):
        message = f"This must be confirmed: events of production to {', '.join(plan.webhooks.local_urls)}."
        raise Failure(Exit.USAGE, "unconfirmed", message, "Run: platform push --yes")
    planning.apply(api, plan)
    if any(each.part == "schema" for each in plan.changes):
        table_types.refresh(api, folder.parent / "types.ts")
    return [each.as_json() for each in plan.changes]


def _only(backend: Backend, folder: Path, changed: set[Path]) -> Backend:
    settings_changed = folder / "functions.json" in changed
    return dataclasses.replace(
        backend,
        schema=backend.schema if folder / "schema.json" in changed else None,
        webhooks=backend.webhooks if folder / "webhooks.json" in changed else None,
        auth=backend.auth if folder / "auth.json" in changed else None,
        sources={name: found for name, found in backend.sources.items() if settings_changed or found[0] in changed},
    )
