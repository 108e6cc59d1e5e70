"""Schema: one draft as forms and as JSON, its plan, and old versions. Each form's button changes the draft's text and
plans it; applying needs a current plan, and confirmation by name of what loses data."""

from typing import Any

from django.http import HttpResponse

from platform_site.developer_console.forms import Form
from platform_site.developer_console.frame import Console, page
from platform_site.developer_console.schema import drafts, new_table, outline, part_forms, plans
from platform_site.developer_console.schema.editor import Editor, OpenPart
from platform_site.developer_console.schema.parts import Part, title_of
from platform_site.http import exact_json
from platform_site.http.errors import ApiError


@page("schema")
def schema(console: Console) -> HttpResponse:
    submitted, is_submitted = console.request.POST, console.request.method == "POST"
    current = console.api("GET", plans.PATH)
    editor = _editor(console, current)
    if is_submitted:
        try:
            editor.submit()
        except ApiError as refusal:
            editor = _editor(console, current)
            editor.refuse(refusal)
    elif console.may_write and "add" in console.request.GET:
        editor.open_part = OpenPart(Part("column", console.request.GET.get("table", "")))
    current = editor.current
    if not is_submitted or editor.is_applied or submitted.get("revert"):
        editor.text = exact_json.dumps(current["document"], indent=True)
    history = console.listed(f"{plans.PATH}/versions", {"limit": "20"})
    emails = console.emails_of(each["applied_by"] for each in history)
    is_renewed = editor.is_applied or editor.is_stale
    context = {
        "current": current,
        "version": current["version"] if is_renewed else submitted.get("version") or current["version"],
        "history": [each | {"email": emails.get(each["applied_by"])} for each in history],
        "revert": "" if editor.is_applied else submitted.get("revert", ""),
        "backfill": plans.backfill_fields(submitted, editor.problems),
        "editor": editor,
        "plan": editor.plan,
        "notice": editor.notice,
        **_forms(editor),
    }
    status = editor.form_refusal.status if editor.form_refusal and console.refusal is None else None
    return console.render("console/schema.html", context, status)


def _editor(console: Console, current: dict[str, Any]) -> Editor:
    submitted = console.request.POST
    is_typed = any(submitted.get(each.name) for each in new_table.FIELDS)
    table_form = Form("new-table", new_table.FIELDS, submitted=submitted if is_typed else None)
    table = submitted.get("open_table") or console.request.GET.get("table", "")
    text = submitted.get("document", "").replace("\r\n", "\n")
    return Editor(console, current, text, table, table_form)


def _forms(editor: Editor) -> dict[str, Any]:
    current = editor.current["document"]
    try:
        draft = drafts.read(editor.text)
    except ApiError:
        return {"is_unreadable": True, "is_changed": True, "kept": _kept(editor.submitted)}
    tables = outline.tables_of(draft, current, editor.problems)
    names = [each["name"] for each in tables]
    table = editor.table if editor.table in names else next(iter(names), "")
    opened = editor.open_part
    is_lost = opened is not None and not part_forms.is_in(draft, opened.part)
    if opened and is_lost and opened.refusal is None:
        opened = None
    return {
        "open_part": opened.part if opened else None,
        "was_open": opened and opened.was_open,
        "is_apart": is_lost,
        "form_title": title_of(draft, opened.part) if opened else "",
        "draft_tables": tables,
        "open_table": table,
        "table_part": Part("table", table),
        "groups": outline.groups_of(draft, current, table, editor.problems) if table else [],
        "user_fields": outline.user_fields(draft, current, editor.problems),
        "is_changed": draft != current,
        "form": _part_form(editor.submitted, draft, opened) if opened else None,
    }


def _part_form(submitted: Any, draft: dict[str, Any], opened: OpenPart) -> Form:
    """Shows the draft, or what was sent if it was refused; not if it was the JSON that was changed, not the form."""
    part = opened.part
    form = Form("part", part_forms.fields_of(draft, part), part_forms.values_of(draft, part), opened.refusal)
    form.fingerprint = part_forms.fingerprints_of(form, draft, part)
    if form.refusal is not None and (part_forms.is_typed(submitted) or not part_forms.is_stale(draft, part, submitted)):
        form.submitted = submitted
        if not opened.is_unsaved:
            form.fingerprint = part_forms.fingerprints_of(form, draft, part)
    return form


def _kept(submitted: Any) -> dict[str, str]:
    """What was typed into the forms, until the JSON can be read again."""
    names = {"open_table", *(each.name for each in new_table.FIELDS)}
    if submitted.get("action") != "close":
        names |= {"part", "fingerprint", *part_forms.sent(submitted)}
    return {name: submitted[name] for name in submitted if name in names}
