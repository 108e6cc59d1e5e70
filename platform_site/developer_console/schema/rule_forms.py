"""The form of one rule: role, action, and rows by common conditions or as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from platform_site.developer_console.forms import Field, invalid, json_of, words
from platform_site.developer_console.schema.parts import Part, put, table_of, value_of
from rows.schema.column_parser import COLUMN_NAME_ENDING
from rows.schema.document_renames import mapping

ROLES: Final = ("user", "anonymous", "member", "server")
EVERYBODY: Final = ("user", "anonymous")
"""Roles do not add up: a rule for everyone is two rules."""
_ME: Final = "$user.id"
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "read": ("where", "columns"),
    "insert": ("columns", "set", "check"),
    "update": ("where", "columns", "set", "check"),
    "delete": ("where",),
}
_ALL_KEYS: Final = _KEYS["update"]
_EXAMPLE: Final = '{"owner_id": "$user.id"}'


class Rows(NamedTuple):
    kind: str
    name: str = ""


def fields_of(document: Any, part: Part) -> list[Field]:
    table = table_of(document, part.table)
    own = [name for name in mapping(table.get("rules")) if name not in ROLES]
    who = [("user", "Signed-in users"), ("everybody", "Everyone, signed in or not"), ("role", "One role")]
    fields = [
        Field("part_who", "Who", "select", choices=who, chooses_types=True),
        Field("part_name", "Role", suggestions=(*ROLES, *own), types=("role",)),
        Field("part_action", "Action", "select", choices=_doubled(list(_KEYS)), chooses_types=True),
    ]
    if isinstance(value_of(document, part), list):
        return [*fields, Field("part_value", "Rules (JSON list)", "code", rows=10)]
    rows = [("all", "All rows"), ("json", "Custom (JSON)")]
    owners, conditions = _owners(table), list(mapping(table.get("conditions")))
    if owners:
        rows.insert(1, ("owner", "Own rows"))
    if conditions:
        rows.insert(-1, ("condition", "Rows of a named condition"))
    code: dict[str, Any] = {"kind": "code", "placeholder": _EXAMPLE}
    choices = (
        Field("part_owner", "Column of the owner", "select", choices=_doubled(owners), types=("owner",)),
        Field("part_condition", "Condition", "select", choices=_doubled(conditions), types=("condition",)),
    )
    return [
        *fields,
        Field("part_rows", "Rows", "select", choices=rows, chooses_types=True),
        *(each for each in choices if each.choices),
        Field("part_where", "Rows: where (JSON)", help="Empty: all rows", types=("json", *_with("where")), **code),
        Field("part_columns", "Columns", placeholder="*, -internal", help="Empty: all columns", types=_with("columns")),
        Field("part_set", "Set by the platform (JSON)", rows=2, types=_with("set"), **code),
        Field("part_check", "Check after the write (JSON)", rows=2, types=_with("check"), **code),
    ]


def _with(key: str) -> list[str]:
    return [action for action, keys in _KEYS.items() if key in keys]


def _doubled(values: Sequence[str]) -> list[tuple[str, str]]:
    return [(each, each) for each in values]


def _owners(table: Mapping[str, Any]) -> list[str]:
    columns = mapping(table.get("columns"))
    return [name + COLUMN_NAME_ENDING for name, column in columns.items() if mapping(column).get("type") == "user"]


def values_of(document: Any, part: Part) -> dict[str, Any]:
    value, table = value_of(document, part), table_of(document, part.table)
    found = {
        "part_who": "role" if part.name not in ("", "user") else "user",
        "part_name": part.name or "user",
        "part_action": part.action or "read",
    }
    if isinstance(value, list):
        return {**found, "part_value": value}
    rule = mapping(value)
    rows = _rows_of(rule, part.action, table)
    if not part.name and (owners := _owners(table)):
        rows = Rows("owner", owners[0])  # a new rule starts with little access
    texts = {f"part_{key}": _without_rows(rule, part.action, rows).get(key) for key in ("where", "set", "check")}
    columns = rule.get("columns")
    return {
        **found,
        **texts,
        "part_rows": rows.kind,
        "part_owner": rows.name if rows.kind == "owner" else "",
        "part_condition": rows.name if rows.kind == "condition" else "",
        "part_columns": ", ".join(map(str, columns)) if isinstance(columns, list) else "",
    }


def _rows_of(rule: Mapping[str, Any], action: str, table: Mapping[str, Any]) -> Rows:
    """An insert has no rows before it: it sets the owner, or checks a condition."""
    condition, owners = rule.get("check" if action == "insert" else "where"), _owners(table)
    if condition in (None, {}):
        mine = [name for name, value in mapping(rule.get("set")).items() if value == _ME and name in owners]
        return Rows("owner", mine[0]) if action == "insert" and len(mine) == 1 else Rows("all")
    if isinstance(condition, dict) and len(condition) == 1:
        name, value = next(iter(condition.items()))
        if name == "$is" and isinstance(value, str) and value in mapping(table.get("conditions")):
            return Rows("condition", value)
        if name in owners and value == _ME and action != "insert":
            return Rows("owner", name)
    return Rows("json")


def _without_rows(rule: Mapping[str, Any], action: str, rows: Rows) -> dict[str, Any]:
    rest = dict(rule)
    if rows.kind == "owner" and action == "insert":
        rest["set"] = {name: value for name, value in mapping(rule.get("set")).items() if name != rows.name} or None
    elif action != "insert" and rows.kind != "json":
        rest.pop("where", None)
    elif rows.kind == "condition":
        rest.pop("check", None)
    return rest


def save(document: dict[str, Any], part: Part, action: str, submitted: Mapping[str, str]) -> Part:
    who, name = submitted.get("part_who", "role"), submitted.get("part_name", "").strip()
    if who == "user":
        name = "user"
    elif who == "everybody":
        name = part.name if part.name in EVERYBODY else EVERYBODY[0]
    if not name:
        raise invalid("part_name", "Write a name.")
    if "part_value" in submitted:
        rule = json_of(submitted["part_value"], "part_value")
    else:
        rule = _rule(mapping(value_of(document, part)), part.action, action, table_of(document, part.table), submitted)
    made = put(document, part, name, action, rule)
    if who == "everybody":
        other = next(role for role in EVERYBODY if role != name)
        put(document, Part("rule", part.table), other, action, rule)
    return made


def _rule(
    rule: Mapping[str, Any], before: str, action: str, table: Mapping[str, Any], submitted: Mapping[str, str]
) -> dict[str, Any]:
    """The rule as submitted. What the form does not show stays, unless it belongs to another action."""
    rows, shown = _submitted_rows(table, submitted), _KEYS.get(action, _ALL_KEYS)
    made = {key: value for key, value in rule.items() if key not in (shown if action == before else _ALL_KEYS)}
    for key in shown:
        if key == "columns":
            value = words(submitted, "part_columns") or (None if rule.get("columns") else rule.get("columns"))
        elif key == "where" and rows.kind != "json":
            value = _where(rows, rule if action == before else {})
        else:
            value = json_of(submitted.get(f"part_{key}", ""), f"part_{key}")
        if value is not None:
            made[key] = value
    if action == "insert" and rows.kind == "owner":
        made["set"] = {**mapping(made.get("set")), rows.name: _ME}
    elif action == "insert" and rows.kind == "condition":
        if "check" in made:
            raise invalid("part_check", "The condition is the check. Choose Custom (JSON) for another check.")
        made["check"] = {"$is": rows.name}
    return made


def _where(rows: Rows, rule: Mapping[str, Any]) -> dict[str, Any] | None:
    if rows.kind == "all":
        return {} if rule.get("where") == {} else None  # unchanged
    return {rows.name: _ME} if rows.kind == "owner" else {"$is": rows.name}


def _submitted_rows(table: Mapping[str, Any], submitted: Mapping[str, str]) -> Rows:
    kind = submitted.get("part_rows", "json")
    if kind in ("all", "json"):
        return Rows(kind)
    known = _owners(table) if kind == "owner" else mapping(table.get("conditions")) if kind == "condition" else ()
    name = submitted.get(f"part_{kind}", "")
    if name not in known:
        raise invalid(f"part_{kind}" if known else "part_rows", "Choose one of these.")
    return Rows(kind, name)
