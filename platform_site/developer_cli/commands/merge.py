"""`merge`: brings the changes of one environment into another."""

import difflib
import json
import re
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from platform_site.developer_cli import output, session, store
from platform_site.developer_cli.api import Answer, Api
from platform_site.developer_cli.failures import Exit, Failure
from platform_site.developer_cli.output import Impact, Sql
from platform_site.developer_cli.prompts import Yes, confirm
from platform_site.developer_cli.session import Environment

Paths = list[str] | None
_MANY_LINES = 4
"""Texts with fewer lines are shown whole."""
_MAX_SHOWN = 200
"""Characters of a value in an error message."""
_RESOLVABLE = re.compile(
    r"schema\.(users\.[^.]+|tables\.[^.]+(\.(unique|indexes|id_prefix|(columns|conditions|checks)\.[^.]+|rules\.[^.]+\.[^.]+))?)"
)
"""The part of an error's path that a merge can resolve."""


def merge(
    source: Annotated[str, typer.Argument(help="Name or id of the environment whose changes are merged.")],
    include: Annotated[
        Paths,
        typer.Option(
            help="Also merge URLs, hosts, schedules and callers of this part or path: functions.digest. Repeatable."
        ),
    ] = None,
    ours: Annotated[
        Paths, typer.Option(help="Path of a conflict in which the environment keeps its value. Repeatable.")
    ] = None,
    theirs: Annotated[
        Paths, typer.Option(help="Path of a conflict in which SOURCE's value is taken. Repeatable.")
    ] = None,
    value: Annotated[
        Paths, typer.Option(help='A value for a path: "PATH=JSON", such as a new column with a backfill. Repeatable.')
    ] = None,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan. Nothing changes.")] = False,
    sql: Sql = False,
    impact: Impact = False,
    environment: Environment = None,
) -> None:
    """Merge SOURCE into the environment: schema, rules, functions and webhooks.

    What both changed is a conflict, to be decided by --ours, --theirs or --value."""
    api = session.environment_api(environment)
    resolve = {**dict.fromkeys(ours or [], "ours"), **dict.fromkeys(theirs or [], "theirs")}
    if both := sorted({*(ours or [])} & {*(theirs or [])}):
        raise Failure(Exit.USAGE, "usage", f"Both --ours and --theirs name {', '.join(both)}.")
    resolve |= dict(_value(each) for each in value or [])
    body = {
        "from": source if store.is_id(source) else session.project_environment(source)[2]["id"],
        "include": include or [],
        "resolve": resolve,
        "impact": impact,
    }
    plan = _planned(api, body)
    _show(plan, sql)
    if plan["conflicts"] and not dry_run:
        raise Failure(
            Exit.CONFLICT,
            "merge_conflicts",
            f"Both environments changed {output.count(len(plan['conflicts']), 'thing')}. Nothing was merged.",
            "Repeat the command with --ours PATH, --theirs PATH or --value PATH=JSON for each.",
            [{"field": each["path"], "code": "conflict", "message": _sides(each)} for each in plan["conflicts"]],
        )
    status, target = None, session.target_name(api)
    if not dry_run and (plan["changes"] or resolve):
        changes = output.count(len(plan["changes"]), "change")
        status = _apply(api, plan, f"Merge {changes} from {source} into {target}?", yes)
    if output.is_json():
        output.print_json({**plan, "environment": api.environment, "applied": status is not None, "status": status})
    elif status == "completing":
        output.note(f"Merged {source} into {target}. Sign-in and origins follow within two minutes.")
    elif status is not None:
        output.note(f"Merged {source} into {target}. To go back: platform revert {plan['version']}")


def revert(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="cfg_…, which `merge` and `push` print.")],
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan. Nothing changes.")] = False,
    sql: Sql = False,
    environment: Environment = None,
) -> None:
    """Give the environment the configuration that it had before a merge or push.

    Renames are reversed. Secrets and the values of dropped columns do not return."""
    api = session.environment_api(environment)
    plan = _planned(api, {"version": version})
    _show(plan, sql, empty="This is the configuration already.")
    is_applied = bool(not dry_run and plan["changes"])
    if is_applied:
        changes = output.count(len(plan["changes"]), "change")
        _apply(api, plan, f"Make {changes} to {session.target_name(api)}, back to {version}?", yes)
    if output.is_json():
        output.print_json({**plan, "environment": api.environment, "applied": is_applied})
    elif is_applied:
        output.note(f"{session.target_name(api)} is back at {version}. To undo this: platform revert {plan['version']}")


def _value(given: str) -> tuple[str, Any]:
    path, _, text = given.partition("=")
    try:
        return path, json.loads(text)
    except ValueError:
        raise Failure(Exit.USAGE, "usage", f'--value "{given}": write PATH=JSON.') from None


def _planned(api: Api, body: dict[str, Any]) -> Answer:
    try:
        return api.send("POST", "/config/plan", body, authored=True)
    except Failure as error:
        paths = [path for each in error.fields if (path := str(each.get("field", ""))).startswith("config.schema.")]
        found = _RESOLVABLE.match(paths[0].removeprefix("config.")) if paths else None
        if found is not None and not error.hint:
            error.hint = f"Change it in the source, or add --value '{found[0]}=JSON'."
        raise


def _apply(api: Api, plan: Answer, question: str, yes: bool) -> str:
    """Asks first, and names what must be confirmed. Returns the status."""
    names = f" This includes: {'; '.join(plan['confirm'])}." if plan["confirm"] else ""
    confirm(f"{question}{names}", yes)
    return api.apply({"plan": plan["plan"], "confirm": plan["confirm"]})


def _show(plan: Answer, sql: bool, *, empty: str = "There is nothing to merge.") -> None:
    if output.is_json():
        return
    for each in plan["changes"]:
        mark = " (loses data)" if each["destructive"] else " (access)" if each["kind"] == "trust" else ""
        print(output.plain(f"{each['operation'] or each['kind'] + ' ' + each['path']}{mark}"))
        for statement in each["sql"] if sql else ():
            print(f"    {output.indented(statement)}")
    output.impact(plan.get("impact", ()))
    for lock in plan["locks"]:
        work = " and ".join(lock["work"]) or "catalog only"
        seconds = f", about {lock['estimated_ms'] / 1000:.1f} s" if lock["work"] else ""
        rows = output.count(lock["rows"], "row")
        print(output.plain(f"lock {lock['table']}: blocks {lock['blocks']} ({work}, {rows}{seconds})"))
    for each in plan["conflicts"]:
        print(output.plain(f"conflict {each['path']}"))
        for line in _conflict_lines(each):
            print(f"    {line}")
    for each in plan["warnings"]:
        output.note(f"Warning: {each['field']}: {each['message']}")
    for path in plan["missing_secrets"]:
        output.note(f"To be set afterwards: {path}")
    if not plan["changes"] and not plan["conflicts"]:
        output.note(empty)


def _conflict_lines(conflict: dict[str, Any]) -> Iterator[str]:
    """Three values, or of sources what differs: from the base if there is one, else from ours to theirs."""
    texts = {side: conflict[side] for side in ("base", "ours", "theirs")}
    lines = {side: text.splitlines() for side, text in texts.items() if isinstance(text, str)}
    if any(len(lines.get(side, ())) < _MANY_LINES for side in ("ours", "theirs")):
        yield from (f"{side}: {output.indented(text) or '(not there)'}" for side, text in texts.items())
        return
    for before, after in (("base", "ours"), ("base", "theirs")) if "base" in lines else (("ours", "theirs"),):
        yield from map(output.plain, difflib.unified_diff(lines[before], lines[after], before, after, "", "", 1, ""))


def _sides(conflict: dict[str, Any]) -> str:
    sides = ((side, output.plain(conflict[side])) for side in ("ours", "theirs"))
    return "; ".join(f"{side}: {text[:_MAX_SHOWN]}{'…' * (len(text) > _MAX_SHOWN)}" for side, text in sides)
