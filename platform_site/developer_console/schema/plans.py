"""Plans and applies a draft, or the return to an earlier version, by the API."""

from typing import Any, Final

from platform_site.developer_console import forms
from platform_site.developer_console.api_calls import path_to
from platform_site.developer_console.frame import Console
from platform_site.developer_console.schema import drafts, part_forms
from platform_site.http import exact_json

PATH: Final = "/v1/schema"
_BACKFILL: Final = "backfill."


def send(console: Console, text: str, *, dry_run: bool, confirm: list[str] | None = None) -> dict[str, Any]:
    submitted = console.request.POST
    options = {"dry_run": dry_run, "impact": dry_run, "confirm": confirm or []}
    headers = {"If-Match": f'"{submitted["version"]}"'} if submitted.get("version") else {}
    if submitted.get("revert"):
        version = forms.integer_of(submitted["revert"])
        body = {"version": version, "backfill": _backfill_values(console, version), **options}
        return console.api("POST", f"{PATH}/revert", body, headers=headers)
    drafts.read(text)
    # The text itself: parsing would hide duplicate names and round large integers.
    exact = b'{"document": %s, %s' % (text.encode(), exact_json.dumps(options)[1:].encode())
    return console.api("PUT", PATH, exact, headers=headers)


def fingerprint(console: Console, text: str) -> str:
    submitted = console.request.POST
    return forms.fingerprint([submitted.get("revert", ""), _backfill(submitted), text])


def _backfill(submitted: Any) -> dict[str, str]:
    """The filled fields of a reversal: values of existing rows, by `table.column`."""
    return {
        name.removeprefix(_BACKFILL): text
        for name in submitted
        if name.startswith(_BACKFILL) and (text := submitted[name].strip())
    }


def backfill_fields(submitted: Any, problems: list[dict[str, Any]]) -> dict[str, str]:
    """Also of columns whose existing rows have no value."""
    paths = [each["field"].split(".") for each in problems if each["code"] == "required"]
    missing = [f"{path[2]}.{path[4]}" for path in paths if len(path) == 5 and path[3] == "columns"]
    return dict.fromkeys(missing, "") | _backfill(submitted)


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
