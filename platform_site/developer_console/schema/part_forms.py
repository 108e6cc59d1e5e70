"""The forms of the parts of a schema: fields, values, and saving into the draft."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from platform_site.developer_console.forms import Field, Form, fingerprint, invalid, json_of, lines_of, words
from platform_site.developer_console.schema import rule_forms
from platform_site.developer_console.schema.parts import Part, put, table_of, value_of
from platform_site.http import exact_json
from platform_site.http.errors import PreconditionFailed
from rows.schema import document_renames
from rows.schema.document_renames import mapping
from rows.schema.formats import FORMATS
from rows.schema.model import SQL_TYPES
from rows.schema.user_fields import USER_FIELDS

_NUMBERS: Final = frozenset({"integer", "float"})
_DEFAULTED: Final = tuple(type_ for type_ in SQL_TYPES if type_ not in ("reference", "user"))
_BOUNDED: Final = ("integer", "decimal", "float", "date", "timestamp")
_SETTINGS: Final = (
    Field("part_default", "Default", help="$now and $uuid are computed", types=_DEFAULTED),
    Field("part_to", "References", "select", types=("reference",)),
    Field(
        "part_on_delete",
        "When the target is deleted",
        "select",
        choices=(
            ("", "default"),
            ("restrict", "restrict (references)"),
            ("cascade", "cascade (references)"),
            ("null", "null"),
            ("keep", "keep (users)"),
            ("delete", "delete (users)"),
        ),
        types=("reference", "user"),
    ),
    Field("part_related_name", "Name of the reverse relation", types=("reference",)),
    Field("part_values", "Values, one per line", "textarea", rows=4, types=("enum",)),
    Field("part_min", "Minimum", types=_BOUNDED),
    Field("part_max", "Maximum", types=_BOUNDED),
    Field("part_min_length", "Minimum length", types=("text",)),
    Field("part_max_length", "Maximum length", types=("text",)),
    Field(
        "part_format", "Format", "select", choices=(("", "any"), *((each, each) for each in FORMATS)), types=("text",)
    ),
    Field("part_precision", "Total digits", types=("decimal",)),
    Field("part_scale", "Digits after the point", types=("decimal",)),
)
"""Of columns of some types."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def fields_of(document: Any, part: Part) -> list[Field]:
    if part.kind == "table":
        return [Field("part_name", "Table name"), Field("part_id_prefix", "Prefix of ids", placeholder="row_")]
    if part.kind == "column":
        return _column_fields(document)
    if part.kind == "unique":
        return [Field("part_columns", "Unique columns", help="Separated by commas: list, title")]
    if part.kind == "index":
        return [Field("part_columns", "Index keys", help="Separated by commas: owner, -created_at")]
    if part.kind == "rule":
        return rule_forms.fields_of(document, part)
    if part.kind == "users":
        return [
            Field("part_name", "Role", suggestions=rule_forms.ROLES),
            Field("part_fields", "Visible fields", help=f"Separated by commas: {', '.join(USER_FIELDS)}"),
        ]
    title = "Condition" if part.kind == "condition" else "Check"
    example = (
        '{"owner_id": "$user.id"}' if part.kind == "condition" else '{"ends_at": {"$gt": {"$column": "starts_at"}}}'
    )
    return [
        Field("part_name", f"{title} name"),
        Field("part_value", f"{title} (JSON)", kind="code", placeholder=example, rows=6),
    ]


def _column_fields(document: Any) -> list[Field]:
    tables = [(name, name) for name in mapping(mapping(document).get("tables"))]
    return [
        Field("part_name", "Column name"),
        Field("part_type", "Type", kind="select", choices=[(each, each) for each in SQL_TYPES], chooses_types=True),
        Field("part_null", "May be null", kind="checkbox"),
        *(replace(each, choices=[("", ""), *tables]) if each.name == "part_to" else each for each in _SETTINGS),
        Field("part_backfill", "Value for existing rows", help="For a new column that is not null"),
    ]


def _key_of(setting: Field) -> str:
    return setting.name.removeprefix("part_")


def values_of(document: Any, part: Part) -> dict[str, Any]:
    if part.kind == "rule":
        return rule_forms.values_of(document, part)
    value = value_of(document, part)
    if part.kind == "table":
        return {"part_name": part.table, "part_id_prefix": mapping(value).get("id_prefix", "")}
    if part.kind == "column":
        return _column_values(part, mapping(value) or {"type": "reference" if part.action == "relation" else "text"})
    if part.kind in ("unique", "index"):
        return {"part_columns": _joined(value)}
    if part.kind == "users":
        return {"part_name": part.name, "part_fields": _joined(value)}
    return {"part_name": part.name, "part_value": value}


def is_in(document: Any, part: Part) -> bool:
    """Whether the draft has the part or, of a new one, its table."""
    tables = mapping(mapping(document).get("tables"))
    return part.table in ("", *tables) and (part.is_new or value_of(document, part) is not None)


def sent(submitted: Mapping[str, str]) -> dict[str, str]:
    return {name: _normal(submitted[name]) for name in submitted if name.startswith("part_")}


def fingerprints_of(form: Form, document: Any, part: Part) -> str:
    """Of the form's values as a browser sends them unedited, and of the part in the draft: show which has changed."""
    return f"{_fingerprint_of_texts(_unedited(form))} {_fingerprint_of_part(document, part)}"


def _unedited(form: Form) -> dict[str, str]:
    found = {}
    for field, value in ((bound.field, bound.value) for bound in form):
        choices = [choice for choice, _ in field.choices]
        if field.kind == "checkbox":
            value = "on" if value else ""
        elif field.kind == "select" and value not in choices:
            value = choices[0] if choices else ""
        text = _normal(str(value))
        # A browser drops line breaks from an input of one line.
        found[field.name] = text.replace("\n", "") if field.kind == "text" else text
    return found


def _normal(text: str) -> str:
    return text.replace("\r\n", "\n").strip()


def _fingerprint_of_texts(texts: Mapping[str, str]) -> str:
    """A browser sends neither an empty checkbox nor a select without choices."""
    return fingerprint({name: text for name, text in texts.items() if text})


def _fingerprint_of_part(document: Any, part: Part) -> str:
    value = value_of(document, part)
    own = mapping(value).get("id_prefix") if part.kind == "table" else value
    return fingerprint([is_in(document, part), own])


def is_typed(submitted: Mapping[str, str]) -> bool:
    """Whether the submitted form is not as it was shown."""
    return _fingerprint_of_texts(sent(submitted)) != submitted.get("fingerprint", "").partition(" ")[0]


def is_stale(document: Any, part: Part, submitted: Mapping[str, str]) -> bool:
    """Whether the part in the draft is not as it was when the form was shown."""
    if "fingerprint" not in submitted:
        return False
    return _fingerprint_of_part(document, part) != submitted["fingerprint"].partition(" ")[2]


def refuse_stale(document: Any, part: Part, submitted: Mapping[str, str]) -> None:
    if is_stale(document, part, submitted):
        both = "was changed in the JSON and in the form"
        problem = both if is_in(document, part) else "is gone from the JSON, but was changed in the form"
        raise PreconditionFailed(f"This part {problem}. Press the button again to use the form, or Cancel.")


def _column_values(part: Part, column: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"part_name": part.name, "part_type": column.get("type"), "part_null": column.get("null")}
    for key in (*map(_key_of, _SETTINGS), "backfill"):
        value = column.get(key, "")
        if key == "values" and isinstance(value, list):
            found["part_values"] = value
        else:
            is_plain = isinstance(value, str) and (value or key not in column)
            found[f"part_{key}"] = value if is_plain else exact_json.dumps(value)
    return found


def _joined(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else ""


def save(document: dict[str, Any], current: Any, part: Part, submitted: Mapping[str, str]) -> Part:
    """Write a form into the draft. `current` is the schema's document. Raises ValidationFailed."""
    name = submitted.get("part_name", "").strip()
    if part.kind == "table":
        return _save_table(document, current, part, name, submitted)
    if part.kind in ("unique", "index"):
        return put(document, part, "", "", words(submitted, "part_columns"))
    if part.kind == "rule":
        return rule_forms.save(document, part, submitted.get("part_action", ""), submitted)
    if not name:
        raise invalid("part_name", "Write a name.")
    if part.kind == "column":
        column = _column(mapping(value_of(document, part)), submitted)
        if part.name and part.name != name:
            before = mapping(table_of(current, part.table).get("columns"))
            document_renames.mark(column, part.name, name, before)
        made = put(document, part, name, "", column)
        if part.name and part.name != name:
            document_renames.columns(table_of(document, part.table), {part.name: name})
        return made
    if part.kind == "users":
        return put(document, part, name, "", words(submitted, "part_fields"))
    return put(document, part, name, "", json_of(submitted.get("part_value", ""), "part_value"))


def _save_table(document: dict[str, Any], current: Any, part: Part, name: str, submitted: Mapping[str, str]) -> Part:
    tables = mapping(document.get("tables"))
    if part.table not in tables:
        raise invalid("part", f"The draft has no table {part.table}.")
    if not name or (name != part.table and name in tables):
        raise invalid("part_name", f"There is a table {name} already." if name else "Write a name.")
    table = mapping(tables[part.table])
    _set(table, "id_prefix", submitted.get("part_id_prefix", "").strip())
    if name != part.table:
        document_renames.mark(table, part.table, name, mapping(mapping(current).get("tables")))
        document["tables"] = {name if key == part.table else key: each for key, each in tables.items()}
        document_renames.table(document, part.table, name)
    return Part("table", name)


def _set(holder: dict[str, Any], key: str, value: Any) -> None:
    if value in ("", None, []):
        holder.pop(key, None)
    else:
        holder[key] = value


def _column(column: dict[str, Any], submitted: Mapping[str, str]) -> dict[str, Any]:
    """The column as submitted, without settings of other types, keeping those without a field."""
    type_ = submitted.get("part_type", "")
    made = {"type": type_, **{key: value for key, value in column.items() if key != "type"}}
    for field in _SETTINGS:
        key, text = _key_of(field), submitted.get(field.name, "").strip() if type_ in field.types else ""
        if key == "values":
            _set(made, key, lines_of(text))
        else:
            _set(made, key, literal(type_, key, text))
            if text == '""' and key == "default":
                made[key] = ""
    _set(made, "null", True if "part_null" in submitted else None)
    _set(made, "backfill", literal(type_, "backfill", submitted.get("part_backfill", "").strip()))
    return made


def literal(type_: str, key: str, text: str) -> Any:
    if key in ("min_length", "max_length", "precision", "scale"):
        return int(text) if _INTEGER.fullmatch(text) else text
    is_json = type_ in _NUMBERS or (key in ("default", "backfill") and type_ in ("boolean", "json", "text[]"))
    if not text or not is_json:
        return text
    try:
        return exact_json.loads(text)
    except ValueError:
        return text
