"""Schema: one draft as forms and as JSON, its plan, and old versions. Each form's button changes the draft's text and
plans it; applying needs a current plan, and confirmation by name of what loses data."""

import json
import re
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, Final

from django.http import HttpResponse

from platform_site.developer_console.api_calls import path_to
from platform_site.developer_console.forms import Form, integer_of, invalid
from platform_site.developer_console.frame import Console, page
from platform_site.developer_console.schema import new_table, outline, part_forms
from platform_site.developer_console.schema.parts import Part, part_of, remove, title_of
from platform_site.http import exact_json
from platform_site.http.errors import ApiError, FieldError, ValidationFailed

_PATH: Final = "/v1/schema"
_BACKFILL: Final = "backfill."
_OF_PARTS: Final = frozenset({"open", "edit", "remove", "save", "close"})
_invalid: Final = partial(invalid, summary="The document cannot be read.")


@page("schema")
def schema(console: Console) -> HttpResponse:
    asked = console.request.POST
    current = console.api("GET", _PATH)
    context: dict[str, Any] = {}
    if console.request.method == "POST":
        try:
            context = _submitted(console, current)
        except ApiError as refusal:
            console.refusal, context = refusal, {"problems": _problems(refusal, _text(console))}
    elif console.may_write and "add" in console.request.GET:
        context["editing"] = Part("column", console.request.GET.get("table", ""))
    is_applied = "applied" in context
    if is_applied:
        current = console.api("GET", _PATH)
    text = exact_json.dumps(current["document"], indent=True)
    if console.request.method == "POST" and not is_applied and not asked.get("revert"):
        text = context.pop("text", None) or _text(console)
    return console.render(
        "console/schema.html",
        {
            "current": current,
            "text": text,
            "version": current["version"] if is_applied else asked.get("version") or current["version"],
            "history": _history(console),
            "revert": "" if is_applied else asked.get("revert", ""),
            "backfill": _backfill_fields(asked, context.get("problems", [])),
            **_forms(console, current["document"], text, context),
            **context,
        },
        context.pop("status", None),
    )


def _history(console: Console) -> list[dict[str, Any]]:
    found = console.listed(f"{_PATH}/versions", {"limit": "20"})
    emails = console.emails_of(each["applied_by"] for each in found)
    return [each | {"email": emails.get(each["applied_by"])} for each in found]


def _submitted(console: Console, current: dict[str, Any]) -> dict[str, Any]:
    """What was typed into the open form of a part becomes part of the draft, whatever button is pressed."""
    asked, text = console.request.POST, _text(console)
    what, _, code = asked.get("what", "").partition(" ")
    is_sent = what == "save" or ("part" in asked and what != "close")
    part = part_of(asked.get("part", "")) if is_sent else None
    is_removed = part is not None and (what, code) == ("remove", part.code)
    draft, saved = _draft(text) if part else {}, None
    if part and not is_removed and (part_forms.is_typed(asked) or (what == "save" and part.is_new)):
        try:
            part_forms.refuse_stale(draft, part, asked)
            saved = part_forms.save(draft, current["document"], part, asked)
        except ApiError as refusal:
            return _refused_part(console, text, part, refusal)
        text = exact_json.dumps(draft, indent=True)
        code = _code_after(code, part, saved)
    if what == "save":
        part = saved or part
        at = part.table if part else ""
        return {"at": at or asked.get("at"), "last": part, **_plan_part(console, text, part)}
    if what == "add-table" or _has_typed_table(asked):
        return _add_table(console, text)
    if what in _OF_PARTS:
        return _edit_part(console, text, what, code)
    if saved:
        late = f"The {title_of(draft, saved)} was not in the document. It is now, and this is the new plan."
        notice = {"notice": late} if what == "apply" else {}
        return {"at": saved.table or asked.get("at"), "is_kept": True, **notice, **_plan_part(console, text, saved)}
    kept = {"editing": part, "is_kept": True} if part else {}
    if part and what == "plan":
        return {"at": asked.get("at"), **kept, **_plan_part(console, text, part)}
    return {**kept, **_change(console, text)}


def _code_after(code: str, part: Part, saved: Part) -> str:
    """The part that a button names, after the form of `part` was saved under a new name, perhaps of its table."""
    if code == part.code:
        return saved.code
    if not code or part.kind != "table":
        return code
    named = part_of(code)
    return replace(named, table=saved.table).code if named.table == part.table else code


def _refused_part(console: Console, text: str, part: Part, refusal: ApiError) -> dict[str, Any]:
    """The form stays open, with its errors. The draft is without it."""
    at = part.table or console.request.POST.get("at")
    shown = {"at": at, "text": text, "status": refusal.status}
    return {**shown, "editing": part, "part_refusal": refusal, "is_unsaved": True}


def _has_typed_table(asked: Any) -> bool:
    """Whether a table was typed into its form and not added, so that a plan would lack it."""
    return asked.get("what") in ("plan", "apply") and any(asked.get(each.name, "").strip() for each in new_table.FIELDS)


def _edit_part(console: Console, text: str, what: str, code: str) -> dict[str, Any]:
    asked = console.request.POST
    part = part_of(code) if what != "close" else None
    draft = _draft(text)
    if part is None or what in ("open", "edit"):
        is_open = part is not None and what == "edit"
        at = part.table if part and part.table else asked.get("at")
        closed = part_of(asked["part"]) if what == "close" and "part" in asked else None
        return {"text": text, "at": at, "editing": part if is_open else None, "last": closed}
    remove(draft, part)
    return {"at": part.table or asked.get("at"), **_plan_part(console, exact_json.dumps(draft, indent=True), None)}


def _plan_part(console: Console, text: str, part: Part | None) -> dict[str, Any]:
    """Plan the draft. Errors of a saved part keep its form open."""
    try:
        return {"plan": _send(console, text, dry_run=True), "planned": _mark(console, text), "text": text}
    except ApiError as refusal:
        problems = _problems(refusal, text)
        console.refusal, context = refusal, {"text": text, "problems": problems}
        own = [_of_part(each, part) for each in problems if part and outline.is_inside(each["field"], part.path)]
        if not own:
            return context
        return context | {"editing": part, "part_refusal": ValidationFailed(refusal.text, fields=own)}


def _of_part(problem: dict[str, Any], part: Part) -> FieldError:
    below = problem["field"].split(".")[len(part.path) + 1 :]
    if part.kind == "column" and not below and problem["code"] == "required":
        text = "Existing rows need a value: write one here or as the default, or choose “May be null”."
        return FieldError("part_backfill", problem["code"], text)
    known = f"part_{below[0]}" if below else "part_name"
    rest = ".".join(below[1:])
    return FieldError(f"{known}.{rest}" if rest else known, problem["code"], problem["message"])


def _forms(console: Console, current: Any, text: str, context: dict[str, Any]) -> dict[str, Any]:
    try:
        draft = _draft(text)
    except ApiError:
        return {"is_unreadable": True, "is_changed": True, "kept": _kept(console.request.POST)}
    problems = context.get("problems", [])
    tables = outline.tables_of(draft, current, problems)
    names = [each["name"] for each in tables]
    asked = context.pop("at", None) or console.request.POST.get("at") or console.request.GET.get("table", "")
    at = asked if asked in names else (names[0] if names else "")
    editing = context.pop("editing", None)
    is_lost = editing is not None and not part_forms.is_in(draft, editing)
    if is_lost and "part_refusal" not in context:
        editing = None
    return {
        "editing": editing,
        "is_apart": is_lost,
        "form_title": title_of(draft, editing) if editing else "",
        "draft_tables": tables,
        "at": at,
        "table_part": Part("table", at),
        "groups": outline.groups_of(draft, current, at, problems) if at else [],
        "user_fields": outline.user_fields(draft, current, problems),
        "is_changed": draft != current,
        "form": _part_form(console, draft, editing, context) if editing else None,
        "table_form": _table_form(console, context),
    }


def _part_form(console: Console, draft: dict[str, Any], part: Part, context: dict[str, Any]) -> Form:
    """Shows the draft, or what was sent if it was refused; not if it was the JSON that was changed, not the form."""
    asked, refusal = console.request.POST, context.get("part_refusal")
    form = Form("part", part_forms.fields_of(draft, part), part_forms.values_of(draft, part), refusal)
    form.seen = part_forms.seen_of(form, draft, part)
    if refusal is not None and (part_forms.is_typed(asked) or not part_forms.is_stale(draft, part, asked)):
        form.asked = asked
        if not context.get("is_unsaved"):
            form.seen = part_forms.seen_of(form, draft, part)
    return form


def _kept(asked: Any) -> dict[str, str]:
    """What was typed into the forms, until the JSON can be read again."""
    names = {"at", *(each.name for each in new_table.FIELDS)}
    if asked.get("what") != "close":
        names |= {"part", "seen", *part_forms.sent(asked)}
    return {name: asked[name] for name in asked if name in names}


def _table_form(console: Console, context: dict[str, Any]) -> Form:
    asked = console.request.POST
    is_open = "is_added" not in context and any(asked.get(each.name) for each in new_table.FIELDS)
    refusal = context.get("table_refusal")
    return Form("new-table", new_table.FIELDS, {}, refusal, asked if is_open or refusal else None)


def _draft(text: str) -> dict[str, Any]:
    """Raises ValidationFailed, with the place in the text."""
    try:
        # Its messages say more than those of orjson, which is stricter (NaN, say).
        json.loads(text, parse_float=exact_json.read_exact_float)
        draft = exact_json.loads(text)
    except json.JSONDecodeError as error:
        raise _invalid("document", f"Line {error.lineno}, column {error.colno}: {error.msg}") from None
    except exact_json.RoundedNumber as error:
        raise _invalid("document", str(error)) from None
    except (ValueError, RecursionError):
        raise _invalid("document", "The document is nested too deep, or has a number that is too long.") from None
    if not isinstance(draft, dict):
        raise _invalid("document", "The document must be an object.")
    return draft


def _mark(console: Console, text: str) -> str:
    asked = console.request.POST
    return sha256(repr((asked.get("revert", ""), sorted(_backfill(asked).items()), text)).encode()).hexdigest()


def _backfill(asked: Any) -> dict[str, str]:
    """The filled fields of a reversal: values of existing rows, by `table.column`."""
    return {
        name.removeprefix(_BACKFILL): text
        for name in asked
        if name.startswith(_BACKFILL) and (text := asked[name].strip())
    }


def _backfill_fields(asked: Any, problems: list[dict[str, Any]]) -> dict[str, str]:
    """Also of columns whose existing rows have no value."""
    paths = [each["field"].split(".") for each in problems if each["code"] == "required"]
    missing = [f"{path[2]}.{path[4]}" for path in paths if len(path) == 5 and path[3] == "columns"]
    return dict.fromkeys(missing, "") | _backfill(asked)


def _backfill_values(console: Console, version: int | str) -> dict[str, Any]:
    texts = _backfill(console.request.POST)
    if not texts:
        return {}
    tables = console.api("GET", path_to("schema", "versions", str(version)))["document"]["tables"]
    found = {}
    for name, text in texts.items():
        table, _, key = name.partition(".")
        column = tables.get(table, {}).get("columns", {}).get(key, {})
        found[name] = part_forms.literal(column.get("type", ""), "backfill", text)
    return found


def _text(console: Console) -> str:
    return console.request.POST.get("document", "").replace("\r\n", "\n")


def _change(console: Console, text: str) -> dict[str, Any]:
    asked = console.request.POST
    what = asked.get("what")
    mark = _mark(console, text)
    if what == "apply" and asked.get("planned") == mark:
        confirmed = [each.strip() for each in asked.getlist("confirm") if each.strip()]
        try:
            done = _send(console, text, dry_run=False, confirm=confirmed)
        except ApiError as refusal:
            if any(each.code == "unconfirmed" for each in refusal.fields):
                plan = _with_typed(_send(console, text, dry_run=True), asked.getlist("confirm"))
                return {"plan": plan, "planned": mark, "unconfirmed": refusal}
            raise
        return {"applied": done, "notice": f"The schema is at version {done['version']}."}
    plan = _send(console, text, dry_run=True)
    edited = "The document has changed since its plan. This is the new plan." if what == "apply" else None
    return {"plan": plan, "planned": mark, "notice": edited, "text": text, "at": asked.get("at")}


def _with_typed(plan: dict[str, Any], confirmed: list[str]) -> dict[str, Any]:
    """The plan, with what was typed to confirm each operation."""
    destructive = (each for each in plan["operations"] if each["destructive"])
    for operation, typed in zip(destructive, confirmed, strict=False):
        operation["typed"] = typed
    return plan


def _add_table(console: Console, text: str) -> dict[str, Any]:
    name = console.request.POST.get("table", "").strip()
    try:
        with_table = new_table.add_to(_draft(text), console.request.POST)
    except ValidationFailed as refusal:
        if refusal.fields[0].field == "document":
            raise
        return {"table_refusal": refusal, "status": refusal.status, "text": text}
    try:
        plan = _send(console, with_table, dry_run=True)
        is_late = console.request.POST.get("what") == "apply"
        notice = f"The table {name} was not in the document. It is now, and this is the new plan." if is_late else None
        done = {"plan": plan, "planned": _mark(console, with_table), "notice": notice}
        return done | {"text": with_table, "at": name, "is_added": True}
    except ApiError as refusal:
        own = new_table.own_errors(refusal, name)
        if own is None:
            console.refusal = refusal
            return {"problems": _problems(refusal, text), "text": text}
        return {"table_refusal": own, "status": refusal.status, "text": text}


def _send(console: Console, text: str, *, dry_run: bool, confirm: list[str] | None = None) -> dict[str, Any]:
    asked = console.request.POST
    options = {"dry_run": dry_run, "impact": dry_run, "confirm": confirm or []}
    headers = {"If-Match": f'"{asked["version"]}"'} if asked.get("version") else {}
    if asked.get("revert"):
        version = integer_of(asked["revert"])
        body = {"version": version, "backfill": _backfill_values(console, version), **options}
        return console.api("POST", f"{_PATH}/revert", body, headers=headers)
    _draft(text)
    # The text itself: parsing would hide duplicate names and round large integers.
    exact = b'{"document": %s, %s' % (text.encode(), exact_json.dumps(options)[1:].encode())
    return console.api("PUT", _PATH, exact, headers=headers)


def _problems(refusal: ApiError, text: str) -> list[dict[str, Any]]:
    return [{**field.as_dict(), "line": _line_of(field.field, text)} for field in refusal.fields]


def _line_of(path: str, text: str) -> int | None:
    at = 0
    for name in path.split(".")[1:]:
        found = re.compile(rf"{re.escape(json.dumps(name))}\s*:").search(text, at)
        if found is None:
            break
        at = found.start() + 1
    return text.count("\n", 0, at) + 1 if at else None
