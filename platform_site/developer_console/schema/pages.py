"""Schema: one draft as forms and as JSON, its plan, and old versions. Each form's button changes the draft's text and
plans it; applying needs a current plan, and confirmation by name of what loses data."""

from dataclasses import dataclass, field, replace
from typing import Any

from django.http import HttpResponse

from platform_site.developer_console.forms import Form
from platform_site.developer_console.frame import Console, page
from platform_site.developer_console.schema import drafts, new_table, outline, part_forms, plans
from platform_site.developer_console.schema.parts import Part, part_of, remove, title_of
from platform_site.http import exact_json
from platform_site.http.errors import ApiError, FieldError, ValidationFailed


@dataclass
class _Shown:
    """What the page shows after a form was submitted, by its names in the templates."""

    text: str = ""
    """The draft."""
    at: str = ""
    """The table whose parts are shown; empty: as before."""
    editing: Part | None = None
    """The part whose form is open."""
    was_open: bool = False
    """Whether it was open before."""
    is_unsaved: bool = False
    """Whether its values are not in the draft."""
    last: Part | None = None
    """The part whose form was closed."""
    part_refusal: ApiError | None = None
    table_refusal: ApiError | None = None
    status: int | None = None
    is_added: bool = False
    """Whether the form of a new table was added to the draft."""
    problems: list[dict[str, Any]] = field(default_factory=list)
    plan: dict[str, Any] | None = None
    planned: str = ""
    """The `fingerprint` of the plan."""
    unconfirmed: ApiError | None = None
    is_applied: bool = False
    notice: str = ""


@page("schema")
def schema(console: Console) -> HttpResponse:
    submitted, is_submitted = console.request.POST, console.request.method == "POST"
    current = console.api("GET", plans.PATH)
    shown = _Shown(drafts.submitted_text(console))
    if is_submitted:
        try:
            _submit(console, current["document"], shown)
        except ApiError as refusal:
            console.refusal, text = refusal, drafts.submitted_text(console)
            shown = _Shown(text, problems=drafts.problems_of(refusal, text))
    elif console.may_write and "add" in console.request.GET:
        shown.editing = Part("column", console.request.GET.get("table", ""))
    if shown.is_applied:
        current = console.api("GET", plans.PATH)
    if not is_submitted or shown.is_applied or submitted.get("revert"):
        shown.text = exact_json.dumps(current["document"], indent=True)
    return console.render(
        "console/schema.html",
        {
            "current": current,
            "version": current["version"] if shown.is_applied else submitted.get("version") or current["version"],
            "history": _history(console),
            "revert": "" if shown.is_applied else submitted.get("revert", ""),
            "backfill": plans.backfill_fields(submitted, shown.problems),
            **vars(shown),
            **_forms(console, current["document"], shown),
        },
        shown.status,
    )


def _history(console: Console) -> list[dict[str, Any]]:
    found = console.listed(f"{plans.PATH}/versions", {"limit": "20"})
    emails = console.emails_of(each["applied_by"] for each in found)
    return [each | {"email": emails.get(each["applied_by"])} for each in found]


def _submit(console: Console, current: Any, shown: _Shown) -> None:
    """Save what was typed into the open form of a part to the draft, then do what the button says."""
    submitted = console.request.POST
    action, _, code = submitted.get("action", "").partition(" ")
    has_open_form = action == "save" or ("part" in submitted and action != "close")
    part = part_of(submitted.get("part", "")) if has_open_form else None
    saved = _save_open_form(current, shown, part, action, code, submitted) if part else None
    if shown.part_refusal:
        return
    if part and saved:
        code = _code_after(code, part, saved)
    if action in ("plan", "apply") and any(submitted.get(each.name, "").strip() for each in new_table.FIELDS):
        action = "add-table"  # it was typed into its form and not added, so that a plan would lack it
    match action:
        case "save":
            shown.last = saved or part
            shown.at = shown.last.table if shown.last else ""
            _plan_part(console, shown, shown.last)
        case "add-table":
            _add_table(console, shown)
        case "close":
            drafts.read(shown.text)  # it must be readable
            shown.last = part_of(submitted["part"]) if "part" in submitted else None
        case "open" | "edit" | "remove":
            named, draft = part_of(code), drafts.read(shown.text)
            shown.at = named.table
            if action == "edit":
                shown.editing = named
            elif action == "remove":
                remove(draft, named)
                shown.text = exact_json.dumps(draft, indent=True)
                _plan_part(console, shown, None)
        case _:
            _submit_draft(console, shown, part, saved)


def _save_open_form(current: Any, shown: _Shown, part: Part, action: str, code: str, submitted: Any) -> Part | None:
    """The saved part, perhaps under a new name. None if there is nothing to save, or if it is refused."""
    draft = drafts.read(shown.text)
    is_removed = (action, code) == ("remove", part.code)
    if is_removed or not (part_forms.is_typed(submitted) or (action == "save" and part.is_new)):
        return None
    try:
        part_forms.refuse_stale(draft, part, submitted)
        saved = part_forms.save(draft, current, part, submitted)
    except ApiError as refusal:
        shown.at, shown.editing, shown.is_unsaved = part.table, part, True
        shown.part_refusal, shown.status = refusal, refusal.status
        return None
    shown.text = exact_json.dumps(draft, indent=True)
    return saved


def _code_after(code: str, part: Part, saved: Part) -> str:
    """The part that a button names, after the form of `part` was saved under a new name, perhaps of its table."""
    if code == part.code:
        return saved.code
    if not code or part.kind != "table":
        return code
    named = part_of(code)
    return replace(named, table=saved.table).code if named.table == part.table else code


def _submit_draft(console: Console, shown: _Shown, part: Part | None, saved: Part | None) -> None:
    """Errors of the open form's part are shown in it. A form that was saved only now is planned, and not applied."""
    action = console.request.POST.get("action")
    shown.was_open = part is not None
    if saved:
        shown.at = saved.table
        if action == "apply":
            title = title_of(drafts.read(shown.text), saved)
            shown.notice = f"The {title} was not in the document. It is now, and this is the new plan."
        _plan_part(console, shown, saved)
        return
    shown.editing = part
    if part and action == "plan":
        _plan_part(console, shown, part)
    else:
        _apply_if_planned(console, shown)


def _apply_if_planned(console: Console, shown: _Shown) -> None:
    """Apply the draft if this is what was planned, else plan it."""
    submitted = console.request.POST
    is_apply = submitted.get("action") == "apply"
    if not is_apply or submitted.get("planned") != plans.fingerprint(console, shown.text):
        _plan(console, shown)
        if is_apply:
            shown.notice = "The document has changed since its plan. This is the new plan."
        return
    typed = submitted.getlist("confirm")
    try:
        confirmed = [each.strip() for each in typed if each.strip()]
        done = plans.send(console, shown.text, dry_run=False, confirm=confirmed)
    except ApiError as refusal:
        if not any(each.code == "unconfirmed" for each in refusal.fields):
            raise
        shown.unconfirmed = refusal
        destructive = (each for each in _plan(console, shown)["operations"] if each["destructive"])
        for operation, text in zip(destructive, typed, strict=False):
            operation["typed"] = text
    else:
        shown.is_applied, shown.notice = True, f"The schema is at version {done['version']}."


def _add_table(console: Console, shown: _Shown) -> None:
    submitted = console.request.POST
    name = submitted.get("table", "").strip()
    try:
        with_table = new_table.add_to(drafts.read(shown.text), submitted)
    except ValidationFailed as refusal:
        if refusal.fields[0].field == "document":
            raise
        shown.table_refusal, shown.status = refusal, refusal.status
        return
    draft, shown.text = shown.text, with_table
    try:
        _plan(console, shown)
    except ApiError as refusal:
        shown.text, own = draft, new_table.own_errors(refusal, name)
        if own is None:
            console.refusal, shown.problems = refusal, drafts.problems_of(refusal, draft)
        else:
            shown.table_refusal, shown.status = own, refusal.status
        return
    shown.at, shown.is_added = name, True
    if submitted.get("action") == "apply":
        shown.notice = f"The table {name} was not in the document. It is now, and this is the new plan."


def _plan_part(console: Console, shown: _Shown, part: Part | None) -> None:
    """Plan the draft. Errors of a saved part keep its form open."""
    try:
        _plan(console, shown)
    except ApiError as refusal:
        console.refusal, shown.problems = refusal, drafts.problems_of(refusal, shown.text)
        own = [_of_part(each, part) for each in shown.problems if part and outline.is_inside(each["field"], part.path)]
        if own:
            shown.editing, shown.part_refusal = part, ValidationFailed(refusal.text, fields=own)


def _plan(console: Console, shown: _Shown) -> dict[str, Any]:
    shown.plan = plan = plans.send(console, shown.text, dry_run=True)
    shown.planned = plans.fingerprint(console, shown.text)
    return plan


def _of_part(problem: dict[str, Any], part: Part) -> FieldError:
    below = problem["field"].split(".")[len(part.path) + 1 :]
    if part.kind == "column" and not below and problem["code"] == "required":
        text = "Existing rows need a value: write one here or as the default, or choose “May be null”."
        return FieldError("part_backfill", problem["code"], text)
    known = f"part_{below[0]}" if below else "part_name"
    rest = ".".join(below[1:])
    return FieldError(f"{known}.{rest}" if rest else known, problem["code"], problem["message"])


def _forms(console: Console, current: Any, shown: _Shown) -> dict[str, Any]:
    try:
        draft = drafts.read(shown.text)
    except ApiError:
        return {"is_unreadable": True, "is_changed": True, "kept": _kept(console.request.POST)}
    tables = outline.tables_of(draft, current, shown.problems)
    names = [each["name"] for each in tables]
    wanted = shown.at or console.request.POST.get("at") or console.request.GET.get("table", "")
    at = wanted if wanted in names else (names[0] if names else "")
    editing = shown.editing
    is_lost = editing is not None and not part_forms.is_in(draft, editing)
    if is_lost and shown.part_refusal is None:
        editing = None
    return {
        "editing": editing,
        "is_apart": is_lost,
        "form_title": title_of(draft, editing) if editing else "",
        "draft_tables": tables,
        "at": at,
        "table_part": Part("table", at),
        "groups": outline.groups_of(draft, current, at, shown.problems) if at else [],
        "user_fields": outline.user_fields(draft, current, shown.problems),
        "is_changed": draft != current,
        "form": _part_form(console, draft, editing, shown) if editing else None,
        "table_form": _table_form(console, shown),
    }


def _part_form(console: Console, draft: dict[str, Any], part: Part, shown: _Shown) -> Form:
    """Shows the draft, or what was sent if it was refused; not if it was the JSON that was changed, not the form."""
    submitted = console.request.POST
    form = Form("part", part_forms.fields_of(draft, part), part_forms.values_of(draft, part), shown.part_refusal)
    form.fingerprint = part_forms.fingerprints_of(form, draft, part)
    if form.refusal is not None and (part_forms.is_typed(submitted) or not part_forms.is_stale(draft, part, submitted)):
        form.submitted = submitted
        if not shown.is_unsaved:
            form.fingerprint = part_forms.fingerprints_of(form, draft, part)
    return form


def _kept(submitted: Any) -> dict[str, str]:
    """What was typed into the forms, until the JSON can be read again."""
    names = {"at", *(each.name for each in new_table.FIELDS)}
    if submitted.get("action") != "close":
        names |= {"part", "fingerprint", *part_forms.sent(submitted)}
    return {name: submitted[name] for name in submitted if name in names}


def _table_form(console: Console, shown: _Shown) -> Form:
    submitted, refusal = console.request.POST, shown.table_refusal
    is_open = not shown.is_added and any(submitted.get(each.name) for each in new_table.FIELDS)
    return Form("new-table", new_table.FIELDS, {}, refusal, submitted if is_open or refusal else None)
