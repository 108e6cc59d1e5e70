"""Random schemas with random rules, rows for them, callers, and what they might ask or write.

Tables are `a`, `b` and `c`: each may refer to the next and to itself, so that paths have somewhere to go. Values come
from small sets: rows then often agree with conditions, tie in orders, and lead to each other.
"""

from typing import Any

from hypothesis import strategies as st

from rows.rules.principal import Principal
from rows.schema.model import SQL_TYPES, Column, Schema, Table
from rows.schema.user_fields import USER_FIELDS
from tests.support.tenants import ALICE, BOB

TABLES = ("a", "b", "c")
VALUES: dict[str, list[Any]] = {
    "text": ["", "x", "X y", "ä", "%_\\", "xx"],
    "integer": [-(2**63), -1, 0, 1, 2, 2**63 - 1],
    "decimal": ["-1.50", "0.00", "0.10", "1.50", "999.99"],
    "float": [-1.5, 0.0, 0.1, 1e300],
    "boolean": [False, True],
    "date": ["0001-01-01", "2026-01-01", "2026-01-02", "9999-12-31"],
    "timestamp": ["2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00.000001Z", "1970-01-01T00:00:00.000000Z"],
    "uuid": ["00000000-0000-0000-0000-000000000001", "ffffffff-ffff-4fff-bfff-ffffffffffff"],
    "json": [{"k": 1}, {"k": [1, "x"]}, [], "x", 0, ["x", "k"]],
    "text[]": [[], ["x"], ["x", "y"], ["%"]],
    "enum": ["one", "two"],
}
USERS = (ALICE.user_id, BOB.user_id)
ORDERED = frozenset(VALUES) - {"json", "text[]"}
CLAIMS: tuple[dict[str, Any], ...] = (
    {},
    {"n": 1, "t": "x", "l": ["x"]},
    {"n": "1", "t": None, "l": []},
    {"n": None, "t": "", "l": [1]},
)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    """The columns of each table, without rules."""
    found: dict[str, Any] = {}
    for number, name in enumerate(TABLES):
        columns: dict[str, Any] = {"owner": {"type": "user", "null": draw(st.booleans())}}
        for type_ in draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=2, max_size=4, unique=True)):
            key = f"{type_.replace('[]', '_list')}_cell"
            columns[key] = {"type": type_, "null": draw(st.booleans()) or type_ in ("json", "text[]")}
            if type_ == "decimal":
                columns[key] |= {"precision": 5, "scale": 2}
            if type_ == "enum":
                columns[key]["values"] = VALUES["enum"]
        if number + 1 < len(TABLES):
            columns["next"] = draw(_reference(TABLES[number + 1]))
        if draw(st.booleans()):
            columns["self"] = {**draw(_reference(name)), "null": True, "related_name": "selves"}
        found[name] = {"id_prefix": f"{name}_x_", "columns": columns}
    return found


@st.composite
def _reference(draw: st.DrawFn, to: str) -> dict[str, Any]:
    null, policies = draw(st.booleans()), ["restrict", "cascade"]
    on_delete = draw(st.sampled_from([*policies, "null"] if null else policies))
    return {"type": "reference", "to": to, "null": null, "on_delete": on_delete}


@st.composite
def conditions(
    draw: st.DrawFn, schema: Schema, table: str, *, is_rule: bool, old: Table | None = None, depth: int = 0
) -> dict[str, Any]:
    """A `where` that the grammar takes from an author (`is_rule`) or, if the names are visible, from a caller. With
    `old` the `check` of an update of that table."""
    found: dict[str, Any] = {}
    for _ in range(draw(st.integers(0 if depth else 1, 2))):
        kinds = ["cell", "cell", "cell", "path"] + (["both", "either", "not", "many"] if depth < 2 else [])
        match draw(st.sampled_from(kinds)):
            case "cell":
                found |= draw(_about_cell(schema, table, "", is_rule=is_rule, old=old))
            case "path":
                found |= draw(_about_path(schema, table, is_rule=is_rule, old=old))
            case "both" | "either" as kind:
                inner = conditions(schema, table, is_rule=is_rule, old=old, depth=depth + 1)
                found["$and" if kind == "both" else "$or"] = draw(st.lists(inner, min_size=1, max_size=2))
            case "not":
                found["$not"] = draw(conditions(schema, table, is_rule=is_rule, old=old, depth=depth + 1))
            case "many" if schema.tables[table].relations:
                relation = draw(st.sampled_from(sorted(schema.tables[table].relations)))
                far = schema.tables[table].relations[relation].table
                quantifier = draw(st.sampled_from(["$some", "$none", "$every"]))
                inner = conditions(schema, far, is_rule=is_rule, old=old, depth=depth + 1)
                found[relation] = {quantifier: draw(inner)}
    return found


@st.composite
def _about_path(draw: st.DrawFn, schema: Schema, table: str, *, is_rule: bool, old: Table | None) -> dict[str, Any]:
    steps = ""
    for _ in range(draw(st.integers(1, 2))):
        near = [relation for relation in schema.tables[table].relations.values() if not relation.many]
        if near:
            relation = draw(st.sampled_from(near))
            steps, table = f"{steps}{relation.relation}.", relation.table
    return draw(_about_cell(schema, table, steps, is_rule=is_rule, old=old))


@st.composite
def _about_cell(
    draw: st.DrawFn, schema: Schema, table: str, prefix: str, *, is_rule: bool, old: Table | None
) -> dict[str, Any]:
    column = draw(st.sampled_from(list(schema.tables[table].columns.values())))
    name = f"{prefix}{column.name}"
    if old is not None and draw(st.booleans()):
        before = [one.name for one in old.columns.values() if SQL_TYPES[one.type] == SQL_TYPES[column.type]]
        if before:
            return {name: draw(_compared(column, f"$old.{draw(st.sampled_from(before))}"))}
    if column.is_user:
        values: list[Any] = [*USERS]
    elif column.references:
        values = [row_id(column.references, number) for number in range(3)]
    else:
        values = [value for value in VALUES[column.type] if value != "" or not is_rule]
    value = st.sampled_from(values)
    if is_rule and draw(st.integers(0, 2)) == 0:
        variable = {"user": "$user.id", "integer": "$user.claims.n", "text": "$user.claims.t"}.get(column.type)
        if variable:
            return {name: draw(st.sampled_from([variable, {"$ne": variable}, {"$not": {"$eq": variable}}]))}
        if column.type == "text[]":
            return {name: {draw(st.sampled_from(["$hasAny", "$hasAll"])): "$user.claims.l"}}
    null = {"$null": draw(st.booleans())}
    if column.type == "json":
        return {name: draw(st.sampled_from([null, {"$eq": draw(value)}, {"$has": "k"}, {"$contains": draw(value)}]))}
    if column.type == "text[]":
        return {name: draw(st.sampled_from([null, {"$eq": draw(value)}, {"$hasAny": draw(value)}, {"$has": "x"}]))}
    choices: list[Any] = [null, draw(value), {"$ne": draw(value)}]
    choices.append({"$in": draw(st.lists(value | st.none(), max_size=3))})
    choices.append({"$nin": draw(st.lists(value, max_size=3))})
    if column.type in ORDERED - {"boolean", "enum"}:
        operator = draw(st.sampled_from(["$gt", "$gte", "$lt", "$lte"]))
        choices += [{operator: draw(value)}, {"$not": {operator: draw(value)}}]
    if column.type == "text":
        choices.append({draw(st.sampled_from(["$contains", "$startsWith", "$iendsWith", "$search"])): draw(value)})
    return {name: draw(st.sampled_from(choices))}


def _compared(column: Column, variable: str) -> st.SearchStrategy[Any]:
    """`column` beside a variable of its type."""
    operators = ["$eq", "$ne"]
    if column.type in ORDERED - {"boolean", "enum"}:
        operators += ["$gt", "$gte", "$lt", "$lte"]
    if column.type == "text[]":
        operators += ["$hasAny", "$hasAll"]
    if column.type == "json":
        operators.append("$contains")
    plain = st.sampled_from(operators).map(lambda operator: {operator: variable})
    return st.just(variable) | plain | plain.map(lambda test: {"$not": test})


@st.composite
def rules(draw: st.DrawFn, schema: Schema, table: Table) -> dict[str, Any]:
    """The rules of role `user` for one table; nothing at all now and then."""
    if draw(st.integers(0, 5)) == 0:
        return {}
    where = st.none() | conditions(schema, table.name, is_rule=True)
    check = st.none() | conditions(schema, table.name, is_rule=True, old=table)
    names = st.lists(st.sampled_from(sorted([*table.columns, "created_at"])), max_size=3, unique=True)
    shown = st.none() | names | names.map(lambda hidden: ["*", *(f"-{name}" for name in hidden)])
    sent = st.none() | st.just(sorted(set(table.columns) - {"owner_id"}))
    forced = draw(st.booleans())
    needs_owner = not table.columns["owner_id"].null and not forced
    insert_columns = None if needs_owner else draw(sent)

    def rule(**parts: Any) -> dict[str, Any]:
        return {name: part for name, part in parts.items() if part is not None}

    return {
        "user": {
            "read": [rule(where=draw(where), columns=draw(shown)) for _ in range(draw(st.integers(1, 3)))],
            "insert": rule(check=draw(where), set={"owner_id": "$user.id"} if forced else None, columns=insert_columns),
            "update": rule(where=draw(where), check=draw(check), columns=draw(sent)),
            "delete": rule(where=draw(where)),
        }
    }


def row_id(table: str, number: int) -> str:
    return f"{table}-{number}"


@st.composite
def rows(draw: st.DrawFn, schema: Schema, each: int = 6) -> dict[str, list[dict[str, Any]]]:
    """Up to `each` rows of each table, in the order in which they can be inserted."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in reversed(TABLES):
        found[name] = []
        for number in range(draw(st.integers(0, each))):
            columns = schema.tables[name].columns.values()
            cells = {column.name: draw(cell(column, found)) for column in columns}
            if all(cells[column.name] is not None or column.null for column in columns):
                found[name].append({"id": row_id(name, number), **cells})
    return found


def cell(column: Column, known: dict[str, list[dict[str, Any]]]) -> st.SearchStrategy[Any]:
    """A value for `column`; a reference leads to one of the rows in `known`, if there is one."""
    if column.is_user:
        values: list[Any] = [*USERS]
    elif column.references:
        values = [row["id"] for row in known.get(column.references, ())] or [None]
    else:
        values = VALUES[column.type]
    return st.sampled_from([*values, None]) if column.null else st.sampled_from(values)


callers = st.builds(
    lambda user_id, claims: Principal("user", user_id=user_id, email=f"{user_id}@example.com", claims=claims),
    st.sampled_from(USERS),
    st.sampled_from(CLAIMS),
)


@st.composite
def orders(draw: st.DrawFn, schema: Schema, table: str) -> str | None:
    keys = []
    for _ in range(draw(st.integers(0, 3))):
        at, steps = table, ""
        near = [relation for relation in schema.tables[at].relations.values() if not relation.many]
        if near and draw(st.integers(0, 3)) == 0:
            relation = draw(st.sampled_from(near))
            at, steps = relation.table, f"{relation.relation}."
        able = [c.name for c in schema.tables[at].columns.values() if c.type in ORDERED | {"user", "reference"}]
        direction = draw(st.sampled_from(["", ".asc", ".desc"]))
        nulls = draw(st.sampled_from(["", ".nullsfirst", ".nullslast"]))
        keys.append(f"{steps}{draw(st.sampled_from([*able, 'id']))}{direction}{nulls}")
    return ",".join(keys) or None


_fields = st.lists(st.sampled_from(USER_FIELDS), min_size=1, unique=True)
users = st.fixed_dictionaries({"user": _fields}) | st.dictionaries(st.sampled_from(["user", "anonymous"]), _fields)
"""Which fields of users the document opens."""


@st.composite
def withs(draw: st.DrawFn, schema: Schema, table: str) -> str | None:
    paths = []
    for _ in range(draw(st.integers(0, 2))):
        at, steps = table, []
        for _ in range(draw(st.integers(1, 2))):
            if schema.tables[at].relations:
                steps.append(draw(st.sampled_from(sorted(schema.tables[at].relations))))
                at = schema.tables[at].relations[steps[-1]].table
        if draw(st.booleans()):
            steps.append("owner")
        if steps:
            paths.append(".".join(steps))
    return ",".join(paths) or None
