"""The form that adds a table to the draft: its columns are lines such as `total decimal(10,2)`."""

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

from platform_site.developer_console.forms import Field, integer_of, lines_of
from platform_site.http.errors import ApiError, FieldError, ValidationFailed
from rows.schema import identifiers
from rows.schema.document_checks import DocumentPath
from rows.schema.model import SQL_TYPES

_COLUMN: Final = re.compile(
    r"(?P<name>\w+) (?P<type>[\w\[\]]+)(?P<null>\??)"
    r"(?: ?\((?P<settings>[^()]*)\)| (?P<to>\w+))?(?P<null_after>\??)",
    re.ASCII,
)
_WITH_SETTINGS: Final = {"decimal": "decimal(10,2)", "enum": "enum(open,done)", "reference": "reference(table)"}
_REFUSED: Final = "No table was added."
_EXAMPLE: Final = "state enum(open,done)"
FIELDS: Final = (
    Field("table", "Name"),
    Field(
        "columns",
        "Columns, one per line: name and type; ? allows null",
        "textarea",
        help=f"Types: {', '.join(_WITH_SETTINGS.get(each, each) for each in SQL_TYPES)}.",
        placeholder="title text\ndue_on date?\ntotal decimal(10,2)\nlist reference(lists)\nowner user",
        rows=5,
    ),
)


def add_to(document: dict[str, Any], submitted: Mapping[str, str]) -> tuple[str, list[FieldError]]:
    """Add the table to the document, and return its name there and what is wrong with the form. Lines with errors are
    left out, and a wrong name is replaced, so that the API finds the other errors. Raises ValidationFailed."""
    name, tables = submitted.get("table", "").strip(), document.get("tables")
    if not isinstance(tables, dict):
        raise ValidationFailed(_REFUSED, fields=[FieldError("table", "invalid", "The document has no tables.")])
    errors = []
    if not name or name in tables:
        errors.append(("table", f"There is a table {name} already." if name else "Write a name."))
    elif problem := identifiers.problem(name):
        errors.append(("table", f"The name {problem}."))
    columns: dict[str, Any] = {}
    wrong_name = bool(errors)
    for line in lines_of(submitted.get("columns", "")):
        found = _COLUMN.fullmatch(" ".join(line.split()))
        if found is None:
            errors.append(("columns", f"{line}: write a name and a type, such as title text or {_EXAMPLE}."))
        elif not _has_its_settings(found):
            type_ = _WITH_SETTINGS.get(found["type"], f"{found['type']} alone; its Edit button sets more")
            errors.append(("columns", f"{line}: write {type_}."))
        elif found["name"] in columns:
            errors.append(("columns", f"{line}: there is a column {found['name']} already."))
        else:
            columns[found["name"]] = _column(found)
    if wrong_name:
        name = next(each for number in count() if (each := f"new_table_{number}") not in tables)
    tables[name] = {"columns": columns}
    return name, [FieldError(at, "invalid", text) for at, text in errors]


def _settings(found: re.Match[str]) -> list[str]:
    return [each.strip() for each in (found["settings"] or found["to"] or "").split(",") if each.strip()]


def _has_its_settings(found: re.Match[str]) -> bool:
    """Whether there are no more settings than the type takes. The API reports missing ones, and unknown types."""
    most = {"decimal": 2, "reference": 1}.get(found["type"], 0)
    return found["type"] == "enum" or found["type"] not in SQL_TYPES or len(_settings(found)) <= most


def _column(found: re.Match[str]) -> dict[str, Any]:
    column: dict[str, Any] = {"type": found["type"]}
    settings = _settings(found)
    if found["type"] == "enum":
        column["values"] = settings
    elif found["type"] == "decimal":
        column |= zip(("precision", "scale"), map(integer_of, settings), strict=False)
    elif settings:
        column["to"] = settings[0]
    if found["null"] or found["null_after"]:
        column["null"] = True
    return column


def refusal_of(errors: Sequence[FieldError], planned: ApiError | None, name: str) -> ApiError | None:
    """The form's own errors and the API's about the table, at the fields of the form."""
    at = DocumentPath("document.tables") / name
    found = [*errors]
    for each in planned.fields if planned else ():
        if each.field != at and not each.field.startswith(f"{at}."):
            continue
        below = each.field.removeprefix(at).removeprefix(".").removeprefix("columns").removeprefix(".")
        text = f"{below}: {each.message}" if below else each.message
        found.append(FieldError("columns" if below else "table", each.code, text))
    return ValidationFailed(_REFUSED, fields=found) if found else None
