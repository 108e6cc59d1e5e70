"""Schema: the document as JSON, the plan of a change next to it, and the versions to go back to.

A change is planned first and applied afterwards. What loses data is confirmed by name, and a document that was edited
after its plan is planned again.
"""

import json
import re
from hashlib import sha256
from typing import Any, Final

from django.http import HttpResponse

from platform_site.developer_console.api_calls import Answer, Refused
from platform_site.developer_console.frame import Console, page
from platform_site.http import exact_json

_PATH: Final = "/v1/schema"
_COLUMN: Final = re.compile(r"(?P<name>\w+) (?P<type>[\w\[\]]+)(?P<null>\??)(?: (?P<to>\w+))?", re.ASCII)


@page("schema")
def schema(console: Console) -> HttpResponse:
    asked = console.request.POST
    context: dict[str, Any] = {}
    status = 200
    if console.request.method == "POST":
        try:
            context = _change(console)
        except Refused as refusal:
            context, status = {"refusal": refusal, "problems": _problems(refusal, _text(console))}, refusal.status
    current = console.api("GET", _PATH).data
    is_applied = "applied" in context
    text = exact_json.dumps(current["document"], indent=True)
    if console.request.method == "POST" and not is_applied and not asked.get("revert"):
        text = context.pop("text", None) or _text(console)
    history = console.api("GET", f"{_PATH}/versions", query={"limit": "20"}).data["data"]
    return console.render(
        "console/schema.html",
        {
            "current": current,
            "text": text,
            "version": current["version"] if is_applied else asked.get("version") or current["version"],
            "history": history,
            "revert": "" if is_applied else asked.get("revert", ""),
            "confirmed": asked.getlist("confirm"),
            **context,
        },
        status,
    )


def _text(console: Console) -> str:
    return console.request.POST.get("document", "").replace("\r\n", "\n")


def _change(console: Console) -> dict[str, Any]:
    """Plan or apply what was posted; what the page shows about it. Raises Refused."""
    asked, text = console.request.POST, _text(console)
    what = asked.get("what")
    if what == "add-table":
        text = _with_table(text, asked.get("table", "").strip(), asked.get("columns", ""))
    mark = sha256(f"{asked.get('revert', '')} {text}".encode()).hexdigest()
    if what == "apply" and asked.get("planned") == mark:
        confirmed = [each.strip() for each in asked.getlist("confirm") if each.strip()]
        try:
            done = _send(console, text, dry_run=False, confirm=confirmed).data
        except Refused as refusal:
            if any(each["code"] == "unconfirmed" for each in refusal.fields):
                return {"plan": _send(console, text, dry_run=True).data, "planned": mark, "unconfirmed": refusal}
            raise
        return {"applied": done, "notice": f"The schema is at version {done['version']}."}
    plan = _send(console, text, dry_run=True).data
    edited = "The document has changed since its plan. This is the new plan." if what == "apply" else None
    return {"plan": plan, "planned": mark, "notice": edited, "text": text}


def _send(console: Console, text: str, *, dry_run: bool, confirm: list[str] | None = None) -> Answer:
    asked = console.request.POST
    options = {"dry_run": dry_run, "impact": dry_run, "confirm": confirm or []}
    headers = {"If-Match": f'"{asked["version"]}"'} if asked.get("version") else {}
    if asked.get("revert"):
        revert = asked["revert"]
        version = int(revert) if revert.isascii() and revert.isdigit() and len(revert) < 10 else revert
        return console.api("POST", f"{_PATH}/revert", {"version": version, **options}, headers=headers)
    _parsed(text)
    # The text itself, so that the API reads what was written: names that come twice, integers of any size.
    body = b'{"document": %s, %s' % (text.encode(), exact_json.dumps(options)[1:].encode())
    return console.api("PUT", _PATH, body, headers=headers)


def _parsed(text: str) -> Any:
    """Raises Refused, with the place, for what is not one JSON value."""
    try:
        return json.loads(text)
    except ValueError as error:
        where = f"Line {error.lineno}, column {error.colno}: " if isinstance(error, json.JSONDecodeError) else ""
        raise _invalid("document", f"{where}{getattr(error, 'msg', 'not JSON')}") from None
    except RecursionError:
        raise _invalid("document", "The document is nested too deep.") from None


def _invalid(field: str, message: str) -> Refused:
    fields = [{"field": field, "code": "invalid", "message": message}]
    return Refused(422, {"code": "validation_failed", "message": "The document cannot be read.", "fields": fields})


def _with_table(text: str, name: str, columns: str) -> str:
    """The document with one more table; each line of `columns` is `name type`, `name type?` or `name reference to`."""
    document = _parsed(text)
    tables = document.get("tables") if isinstance(document, dict) else None
    if not isinstance(tables, dict):
        raise _invalid("document", "The document has no tables.")
    if name in tables:
        raise _invalid("table", f"There is a table {name} already.")
    made: dict[str, Any] = {}
    for line in filter(None, map(str.strip, columns.splitlines())):
        found = _COLUMN.fullmatch(" ".join(line.split()))
        if found is None:
            raise _invalid("columns", f"{line}: write a name and a type, such as title text or list reference lists.")
        column: dict[str, Any] = {"type": found["type"]}
        if found["to"]:
            column["to"] = found["to"]
        if found["null"]:
            column["null"] = True
        made[found["name"]] = column
    tables[name] = {"columns": made}
    return exact_json.dumps(document, indent=True)


def _problems(refusal: Refused, text: str) -> list[dict[str, Any]]:
    """The invalid fields, each with its line of the document."""
    return [{**field, "line": _line_of(field["field"], text)} for field in refusal.fields]


def _line_of(path: str, text: str) -> int | None:
    """The line on which the last known part of a path such as `document.tables.notes.columns.title` is named."""
    at = 0
    for name in path.split(".")[1:]:
        found = re.compile(rf"{re.escape(json.dumps(name))}\s*:").search(text, at)
        if found is None:
            break
        at = found.start() + 1
    return text.count("\n", 0, at) + 1 if at else None
