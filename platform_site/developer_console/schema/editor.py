from dataclasses import dataclass, field, replace
from typing import Any

from platform_site.developer_console.forms import Form
from platform_site.developer_console.frame import Console
from platform_site.developer_console.schema import drafts, new_table, outline, part_forms, plans
from platform_site.developer_console.schema.parts import Part, part_of, remove, title_of
from platform_site.http import exact_json
from platform_site.http.errors import ApiError, FieldError, PreconditionFailed, ValidationFailed


@dataclass
class OpenPart:
    """A part whose form is shown."""

    part: Part
    refusal: ApiError | None = None
    was_open: bool = False
    is_unsaved: bool = False
    """Whether the draft lacks the submitted values."""


@dataclass
class Editor:
    """The draft with its forms and its plan."""

    console: Console
    current: dict[str, Any]
    """The API's schema, with its version."""
    text: str
    """The draft."""
    table: str
    """Its parts are shown, if the draft has it."""
    table_form: Form
    """Of a new table."""
    open_part: OpenPart | None = None
    closed_part: Part | None = None
    problems: list[dict[str, Any]] = field(default_factory=list)
    plan: dict[str, Any] | None = None
    unconfirmed: ApiError | None = None
    is_applied: bool = False
    is_stale: bool = False
    """Whether another version was applied since the page was opened. The next plan compares with it."""
    notice: str = ""

    @property
    def submitted(self) -> Any:
        return self.console.request.POST

    @property
    def form_refusal(self) -> ApiError | None:
        return self.open_part.refusal if self.open_part and self.open_part.refusal else self.table_form.refusal

    def submit(self) -> None:
        """Save the open form of a part to the draft, then do what the button says."""
        action, _, code = self.submitted.get("action", "").partition(" ")
        has_open_form = action == "save" or ("part" in self.submitted and action != "close")
        part = part_of(self.submitted.get("part", "")) if has_open_form else None
        saved = self._save_part(part, action, code) if part else None
        if self.open_part:  # it is refused
            return
        if part and saved:
            code = _code_after(code, part, saved)
        if action in ("plan", "apply") and any(self.submitted.get(each.name, "").strip() for each in new_table.FIELDS):
            action = "add-table"  # it was typed into its form and not added, so that a plan would lack it
        match action:
            case "save":
                self.closed_part = saved or part
                self._show_table_of(self.closed_part)
                self._plan_part(self.closed_part)
            case "add-table":
                self._add_table()
            case "close":
                drafts.read(self.text)  # it must be readable
                self.closed_part = part_of(self.submitted["part"]) if "part" in self.submitted else None
            case "open" | "edit" | "remove":
                named, draft = part_of(code), drafts.read(self.text)
                self._show_table_of(named)
                if action == "edit":
                    self.open_part = OpenPart(named)
                elif action == "remove":
                    remove(draft, named)
                    self._write(draft)
                    self._plan_part(None)
            case _:
                self._submit_draft(part, saved)

    def refuse(self, refusal: ApiError) -> None:
        if refusal.status == PreconditionFailed.status:
            self.is_stale = True
            refusal = PreconditionFailed(
                f"Version {self.current['version']} was applied meanwhile. Plan again to compare your document with "
                "it: what only that version has would be removed."
            )
        self.console.refusal = refusal
        self.problems = [{**each.as_dict(), "line": drafts.line_of(each.field, self.text)} for each in refusal.fields]

    def _show_table_of(self, part: Part | None) -> None:
        if part and part.table:
            self.table = part.table

    def _write(self, draft: dict[str, Any]) -> None:
        self.text = exact_json.dumps(draft, indent=True)

    def _save_part(self, part: Part, action: str, code: str) -> Part | None:
        """The saved part, perhaps under a new name. None if there is nothing to save, or if it is refused."""
        draft = drafts.read(self.text)
        is_removed = (action, code) == ("remove", part.code)
        if is_removed or not (part_forms.is_typed(self.submitted) or (action == "save" and part.is_new)):
            return None
        try:
            part_forms.refuse_stale(draft, part, self.submitted)
            saved = part_forms.save(draft, self.current["document"], part, self.submitted)
        except ApiError as refusal:
            self._show_table_of(part)
            self.open_part = OpenPart(part, refusal, is_unsaved=True)
            return None
        self._write(draft)
        return saved

    def _submit_draft(self, part: Part | None, saved: Part | None) -> None:
        """Errors of the open form's part are shown in it. What was saved only now is planned, and not applied."""
        action = self.submitted.get("action")
        if saved:
            self._show_table_of(saved)
            if action == "apply":
                title = title_of(drafts.read(self.text), saved)
                self.notice = f"The {title} was not in the document. It is now, and this is the new plan."
            self._plan_part(saved)
            return
        self.open_part = OpenPart(part, was_open=True) if part else None
        if part and action == "plan":
            self._plan_part(part)
        elif action != "apply":
            self._plan()
        elif self.submitted.get("planned") != plans.fingerprint(self.console, self.text):
            self._plan()
            self.notice = "The document has changed since its plan. This is the new plan."
        else:
            self._apply()

    def _apply(self) -> None:
        """If operations lack their confirmation, the plan is shown again, with what was typed."""
        typed = self.submitted.getlist("confirm")
        try:
            confirmed = [each.strip() for each in typed if each.strip()]
            done = plans.send(self.console, self.text, dry_run=False, confirm=confirmed)
        except ApiError as refusal:
            if not any(each.code == "unconfirmed" for each in refusal.fields):
                raise
            self.unconfirmed = refusal
            destructive = (each for each in self._plan()["operations"] if each["destructive"])
            for operation, text in zip(destructive, typed, strict=False):
                operation["typed"] = text
        else:
            self.is_applied, self.notice = True, f"The schema is at version {done['version']}."
            self.current = self.console.api("GET", plans.PATH)

    def _add_table(self) -> None:
        draft, before = drafts.read(self.text), self.text
        planned: ApiError | None = None
        try:
            name, errors = new_table.add_to(draft, self.submitted)
        except ValidationFailed as refusal:
            self.table_form.refusal, self.table_form.submitted = refusal, self.submitted
            return
        self._write(draft)
        try:
            self._plan()
        except ApiError as refusal:
            planned = refusal
        if errors or planned:
            self.text, self.plan = before, None
            self.table_form.refusal = refused = new_table.refusal_of(errors, planned, name)
            self.table_form.submitted = self.submitted
            if planned and (refused is None or refused.fields == errors):
                self.refuse(planned)
            return
        self.table = name
        self.table_form.submitted = None
        if self.submitted.get("action") == "apply":
            self.notice = f"The table {name} was not in the document. It is now, and this is the new plan."

    def _plan_part(self, part: Part | None) -> None:
        """Plan the draft. Errors of a saved part keep its form open."""
        try:
            self._plan()
        except ApiError as refusal:
            self.refuse(refusal)
            if part is None:
                return
            own = [_of_part(each, part) for each in self.problems if outline.is_inside(each["field"], part.path)]
            if own:
                self.open_part = OpenPart(part, ValidationFailed(refusal.text, fields=own))

    def _plan(self) -> dict[str, Any]:
        plan = plans.send(self.console, self.text, dry_run=True)
        plan["fingerprint"] = plans.fingerprint(self.console, self.text)
        self.plan = plan
        return plan


def _code_after(code: str, part: Part, saved: Part) -> str:
    """The part that a button names, after the form of `part` was saved under a new name, perhaps of its table."""
    if code == part.code:
        return saved.code
    if not code or part.kind != "table":
        return code
    named = part_of(code)
    return replace(named, table=saved.table).code if named.table == part.table else code


def _of_part(problem: dict[str, Any], part: Part) -> FieldError:
    below = problem["field"].split(".")[len(part.path) + 1 :]
    if part.kind == "column" and not below and problem["code"] == "required":
        text = "Existing rows need a value: write one here or as the default, or choose “May be null”."
        return FieldError("part_backfill", problem["code"], text)
    known = f"part_{below[0]}" if below else "part_name"
    rest = ".".join(below[1:])
    return FieldError(f"{known}.{rest}" if rest else known, problem["code"], problem["message"])
