"""`pull`, `plan` and `push`: the folder `backend/` and an environment."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from platform_site.developer_cli import backend_files, output, planning, session, store, webhook_plans
from platform_site.developer_cli.api import Api, path_part
from platform_site.developer_cli.failures import Exit, Failure
from platform_site.developer_cli.output import Impact, Sql
from platform_site.developer_cli.prompts import Yes
from platform_site.developer_cli.prompts import confirm as confirm_or_fail
from platform_site.developer_cli.session import Environment
from platform_site.developer_cli.webhook_urls import REFERENCE

Folder = Annotated[
    Path, typer.Option("--folder", help="The folder with schema.json. Default: backend/ beside platform.json.")
]
_SETS = {"events", "on", "allowed_hosts", "redirect_uris"}
"""Settings whose order means nothing."""
_DEFAULTS: dict[str, Any] = {
    "timeout_ms": 5000, "memory_mb": 128, "allowed_hosts": [], "invoke": None, "attempts": 1,
    "schedule": None, "on": None, "filter": None, "columns": None, "ordering": "none", "description": "",
    "enabled": True, "name": None,
}  # fmt: skip


def backend_folder(given: Path) -> Path:
    """Beside platform.json, unless named."""
    linked = store.find_link()
    if given != Path("backend") or linked is None:
        return given
    folder, here = linked[0] / given, Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def pull(
    folder: Folder = Path("backend"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that differ.")] = False,
    credentials: Annotated[
        bool, typer.Option("--with-credentials", help="Write the URLs of webhooks with their tokens and keys.")
    ] = False,
    environment: Environment = None,
) -> None:
    """Write the environment's schema, functions, webhooks and sign-in settings to backend/.

    Secrets, also those in URLs, are not written."""
    api = session.environment_api(environment)
    folder = backend_folder(folder)
    backend_files.check_links(folder)
    files = _pulled(api, folder, credentials)
    differing = [path for path, text in files.items() if path.exists() and _differs(path, text)]
    if differing and not force:
        names = ", ".join(str(path) for path in differing)
        raise Failure(Exit.CONFLICT, "would_overwrite", f"These files differ: {names}.", "Overwrite them with --force.")
    written = [path for path in files if path in differing or not path.exists()]
    for path in written:
        store.write_file(path, files[path])
    rows = [{"file": str(path), "written": path in written} for path in files]
    output.table(rows, ["file", "written"], "The environment is empty.")


def _pulled(api: Api, folder: Path, credentials: bool) -> dict[Path, str]:
    files: dict[Path, Any] = {folder / "schema.json": api.get("/schema")["document"]}
    settings: dict[str, Any] = {}
    sources: dict[Path, str] = {}
    for each in api.pages("/functions", limit=100):
        name = backend_files.check_name(str(each["name"]))
        script = folder / "functions" / f"{name}.js"
        path = script if script.exists() else script.with_suffix(".ts")
        versions = api.pages(f"/functions/{path_part(name)}/versions", limit=20)
        sources[path] = next((str(each["source"]) for each in versions if each["is_active"]), "")
        if own := _own(each, backend_files.FUNCTION_SETTINGS):
            settings[name] = own
    if settings or (folder / "functions.json").exists():
        files[folder / "functions.json"] = settings
    found = webhook_plans.configured_webhooks(api)
    urls = "url" if credentials else "masked"
    unnamed = Counter(each[urls] for each in found if each["name"] is None)
    hooks = [
        ({"id": each["id"]} if each["name"] is None and unnamed[each[urls]] > 1 else {})
        | _own(each | {"url": each[urls]}, backend_files.WEBHOOK_SETTINGS)
        for each in found
    ]
    if hooks or (folder / "webhooks.json").exists():
        files[folder / "webhooks.json"] = hooks
    try:
        files[folder / "auth.json"] = api.get("/config", parts="auth")["config"]["auth"]
    except Failure as error:
        if error.code != "forbidden":
            raise
        output.note("auth.json is not written: this key may not read the sign-in settings.")
    if masked := [each["name"] or each["masked"] for each in found if REFERENCE in each["masked"]]:
        output.note(
            f"Warning: webhooks.json has credentials, of {', '.join(masked)}. Do not commit it."
            if credentials
            else f"Credentials in URLs of webhooks are left out: {', '.join(masked)}. Push leaves them as they are."
        )
    texts = {path: json.dumps(value, indent=2, ensure_ascii=False) + "\n" for path, value in files.items()}
    return texts | sources


def _own(found: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Settings other than the service's defaults."""
    return {name: found[name] for name in names if name not in _DEFAULTS or found[name] != _DEFAULTS[name]}


def _differs(path: Path, text: str) -> bool:
    """JSON is compared by value. A file that cannot be read differs."""
    try:
        found = store.read_file(path)
        if path.suffix == ".json":
            return bool(_with_sorted_sets(json.loads(found)) != _with_sorted_sets(json.loads(text)))
        return found != text
    except (Failure, ValueError, TypeError):
        return True


def _with_sorted_sets(value: Any, depth: int = 2) -> Any:
    if isinstance(value, list) and depth:
        return [_with_sorted_sets(each, depth - 1) for each in value]
    if isinstance(value, dict) and depth:
        return {
            name: sorted(it) if name in _SETS and isinstance(it, list) else _with_sorted_sets(it, depth - 1)
            for name, it in value.items()
        }
    return value


def plan(
    folder: Folder = Path("backend"), sql: Sql = False, impact: Impact = False, environment: Environment = None
) -> None:
    """Show what push would change in the environment, and change nothing."""
    api = session.environment_api(environment)
    planned = planning.make(api, backend_files.read(backend_folder(folder)), impact)
    _show(planned, sql)
    if output.is_json():
        output.print_json(_as_json(api, planned, applied=False))
    else:
        _sum_up(api, planned, "Push would make")


def push(
    folder: Folder = Path("backend"),
    confirm: Annotated[
        list[str] | None,
        typer.Option(
            help='A change that loses data, as in the plan: "drop column tasks.internal"; "auth.sign_up" if more '
            "people could sign up. Repeatable."
        ),
    ] = None,
    show_secrets: Annotated[
        bool, typer.Option("--show-secrets", help="Print the signing secrets of new webhooks.")
    ] = False,
    yes: Yes = False,
    sql: Sql = False,
    environment: Environment = None,
) -> None:
    """Apply backend/ to the environment: schema, functions, webhooks and sign-in settings, all or nothing."""
    backend = backend_files.read(backend_folder(folder))
    api = session.environment_api(environment)
    planned = planning.make(api, backend)
    _show(planned, sql)
    _check_confirmed(planned, confirm or [])
    if planned.webhooks.local_urls and session.is_production(api):
        confirm_or_fail(f"Send events of production to {', '.join(planned.webhooks.local_urls)}?", yes)
    follow = planning.apply(api, planned)
    secrets = webhook_plans.new_secrets(api, planned.webhooks) if show_secrets else {}
    if output.is_json():
        more = {"webhook_secrets": secrets} if show_secrets else {}
        output.print_json({**_as_json(api, planned, applied=True), **more})
        return
    for name, secret in secrets.items():
        print(output.plain(f"{name} {secret}"))
    for each in planned.webhooks.by_key.values():
        if each.is_new and not show_secrets:
            output.note(f"For the signing secret of {each.label}: platform webhooks rotate {each.name or 'WEBHOOK'}")
    _sum_up(api, planned, "Applied")
    if follow:
        output.note("The sign-in settings follow within two minutes.")
    elif planned.version_before:
        output.note(f"To go back: platform revert {planned.version_before}")


def _sum_up(api: Api, planned: planning.Plan, did: str) -> None:
    target = session.target_name(api)
    if planned.changes:
        output.note(f"{did} {output.count(len(planned.changes), 'change')} to {target}.")
    else:
        output.note(f"Nothing to change in {target}.")


def _check_confirmed(planned: planning.Plan, confirmed: list[str]) -> None:
    missing = planned.unconfirmed(confirmed)
    if not missing:
        return
    if output.is_terminal() and output.asks(f"To confirm: {'; '.join(missing)}. Continue?"):
        return
    fields = [{"field": "--confirm", "code": "unconfirmed", "message": each} for each in missing]
    raise Failure(
        Exit.USAGE,
        "unconfirmed",
        "The push has changes that must be confirmed.",
        "Name each of these with --confirm.",
        fields,
    )


def _show(planned: planning.Plan, sql: bool) -> None:
    if output.is_json():
        return
    for each in planned.changes:
        mark = " (loses data)" if each.destructive else " (more people can sign up)" if each.access else ""
        print(output.plain(each.change + mark))
        for statement in each.sql if sql else ():
            print(f"    {output.indented(statement)}")
    output.impact(planned.impact)
    for warning in planned.warnings:
        output.note(f"Warning: {warning}")
    if planned.only_in_environment:
        output.note(f"Only in the environment, unchanged: {', '.join(planned.only_in_environment)}.")


def _as_json(api: Api, planned: planning.Plan, applied: bool) -> dict[str, Any]:
    return {
        "environment": api.environment,
        "applied": applied,
        "version_before": planned.version_before,
        "changes": [each.as_json() for each in planned.changes],
        "impact": planned.impact,
        "warnings": planned.warnings,
        "only_in_environment": planned.only_in_environment,
    }
