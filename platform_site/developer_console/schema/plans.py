"""Plans and applies a draft, or the return to an earlier version, by the API."""

from collections.abc import Mapping
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
    return forms.fingerprint([submitted.get("revert", ""), backfill_texts(submitted), text])


def backfill_texts(submitted: Any) -> dict[str, str]:
    """The filled fields of values for existing rows, by `table.column`."""
    return {
        name.removeprefix(_BACKFILL): text
        for name in submitted
        if name.startswith(_BACKFILL) and (text := submitted[name].strip())
    }


def backfill_fields(submitted: Any, problems: list[dict[str, Any]]) -> dict[str, str]:
    """Also of columns whose existing rows have no value."""
    paths = [each["field"].split(".") for each in problems if each["code"] == "required"]
    missing = [f"{path[-3]}.{path[-1]}" for path in paths if path[-4:-3] == ["tables"] and path[-2] == "columns"]
    return dict.fromkeys(missing, "") | backfill_texts(submitted)


def column_of(tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The column `table.column` of a document's tables."""
    table, _, key = name.partition(".")
    return dict(tables.get(table, {}).get("columns", {}).get(key, {}))


def backfill_value(column: Mapping[str, Any], text: str) -> Any:
    return part_forms.literal(column.get("type", ""), "backfill", text)


def _backfill_values(console: Console, version: int | str) -> dict[str, Any]:
    texts = backfill_texts(console.request.POST)
    if not texts:
        return {}
    tables = console.api("GET", path_to("schema", "versions", str(version)))["document"]["tables"]
    return {name: backfill_value(column_of(tables, name), text) for name, text in texts.items()}
