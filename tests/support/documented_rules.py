"""A second reference implementation, of the documentation: decides from the JSON of documents, rules and filters alone.

It uses nothing of `rows.rules.grammar` and `rows.rules.rules`: no conditions, no normal form, no SQL. Slow and plain on
purpose. It reads docs/reference/filters.md literally and is what test_rows_property.py compares the API with. Only the
meaning of a single operator over a single cell is borrowed from `rows.rules.evaluator`, which test_evaluate.py holds
against PostgreSQL.
"""

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from rows.rules.evaluator import encloses, is_like, is_same_json, lower
from rows.rules.principal import Principal

Json = Any
Row = dict[str, Any]

COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "$gt": lambda a, b: a > b,
    "$gte": lambda a, b: a >= b,
    "$lt": lambda a, b: a < b,
    "$lte": lambda a, b: a <= b,
}
PATTERNS: dict[str, Callable[[str, str], bool]] = {
    "exact": str.__eq__,
    "$like": is_like,
    "$contains": lambda cell, part: part in cell,
    "$startsWith": str.startswith,
    "$endsWith": str.endswith,
}
IGNORING_CASE = {
    "$ieq": "exact",
    "$ilike": "$like",
    "$icontains": "$contains",
    "$istartsWith": "$startsWith",
    "$iendsWith": "$endsWith",
}
MISSING = object()


class Unknown(Exception):
    """A name that this caller cannot know of."""


class Documented:
    """One environment: its document, and its rows as an operator sees them."""

    def __init__(self, document: Json, rows: dict[str, list[Row]]) -> None:
        self.tables: dict[str, Json] = document["tables"]
        self.rows = rows

    # The document

    def types(self, table: str) -> dict[str, str]:
        """Column to type, in the order of answers."""
        found = {"id": "text"}
        for key, column in self.tables[table]["columns"].items():
            found[f"{key}_id" if column["type"] in ("reference", "user") else key] = column["type"]
        return {**found, "created_at": "timestamp", "updated_at": "timestamp"}

    def relations(self, table: str) -> dict[str, tuple[str, str, bool]]:
        """Relation to (far table, linking column, whether it leads to many)."""
        found = {
            key: (column["to"], f"{key}_id", False)
            for key, column in self.tables[table]["columns"].items()
            if column["type"] == "reference"
        }
        for other, description in self.tables.items():
            for key, column in description["columns"].items():
                if column["type"] == "reference" and column["to"] == table:
                    found[column.get("related_name", other)] = (other, f"{key}_id", True)
        return found

    def read_rules(self, who: Principal, table: str) -> list[Json]:
        """The read rules that apply; none means that the table is not there."""
        rules = self.tables[table].get("rules", {})
        if who.bypass:
            return [{}]
        if who.kind == "anonymous":
            role = "anonymous"
        elif who.kind != "user":
            role = "server" if who.kind == "key" else "member"
            if role not in rules:
                return [{}]
        else:
            role = who.role if who.role in rules and who.role not in ("user", "member", "server") else "user"
        found = rules.get(role, {}).get("read", [])
        return found if isinstance(found, list) else [found]

    def columns_of(self, table: str, rule: Json) -> set[str]:
        """The columns that one rule grants."""
        types = self.types(table)

        def named(patterns: list[str]) -> set[str]:
            return {pattern if pattern in types else f"{pattern}_id" for pattern in patterns}

        patterns = rule.get("columns", ["*"])
        denied = named([pattern[1:] for pattern in patterns if pattern.startswith("-")])
        chosen = named([pattern for pattern in patterns if pattern[0] not in "*-"])
        return ((set(types) if "*" in patterns else chosen) - denied) | {"id"}

    # What a caller sees

    def columns(self, who: Principal, table: str) -> list[str]:
        """The columns that exist for `who`."""
        granted: set[str] = set()
        for rule in self.read_rules(who, table):
            granted |= self.columns_of(table, rule)
        return [name for name in self.types(table) if name in granted]

    def seen(self, who: Principal, table: str) -> list[Row]:
        """The rows that `who` may read, with the columns that exist for it; a cell that it may not read is null."""
        found = []
        whole = Reading(self, who, is_rule=True)
        for row in self.rows[table]:
            cells: set[str] = set()
            for rule in self.read_rules(who, table):
                if whole.true(table, rule.get("where") or {}, row):
                    cells |= self.columns_of(table, rule)
            if cells:
                found.append({name: row[name] if name in cells else None for name in self.columns(who, table)})
        return found


class Reading:
    """Conditions as `who` reads them: its own through what it may see, those of rules through everything."""

    def __init__(self, oracle: Documented, who: Principal, *, is_rule: bool = False) -> None:
        self.oracle = oracle
        self.who = who
        self.is_rule = is_rule
        self._seen: dict[str, list[Row]] = {}

    def rows(self, table: str) -> list[Row]:
        if self.is_rule:
            return self.oracle.rows[table]
        if table not in self._seen:
            self._seen[table] = self.oracle.seen(self.who, table)
        return self._seen[table]

    def has_column(self, table: str, name: str) -> bool:
        return name in (self.oracle.types(table) if self.is_rule else self.oracle.columns(self.who, table))

    def relation(self, table: str, name: str) -> tuple[str, str, bool]:
        far, link, many = self.oracle.relations(table).get(name, ("", "", False))
        if not far or not (self.is_rule or self.oracle.read_rules(self.who, far)):
            raise Unknown(name)
        if not self.has_column(far if many else table, link):
            raise Unknown(name)
        return far, link, many

    def related(self, table: str, name: str, row: Row) -> list[Row]:
        far, link, many = self.relation(table, name)
        if many:
            return [other for other in self.rows(far) if other.get(link) == row["id"]]
        return [other for other in self.rows(far) if other["id"] == row.get(link)]

    def walk(self, table: str, name: str) -> tuple[str, str]:
        """The table at the end of a dotted name, and the name's last part."""
        *steps, last = name.split(".")
        for step in steps:
            table, _, many = self.relation(table, step)
            if many:
                raise Unknown(name)
        return table, last

    def ends(self, table: str, name: str, row: Row) -> list[Row]:
        """The row, one or none, whose cell a dotted name means."""
        rows = [row]
        for step in name.split(".")[:-1]:
            rows = [far for at in rows for far in self.related(table, step, at)]
            table = self.relation(table, step)[0]
        return rows

    def cell(self, table: str, name: str, row: Row) -> Any:
        rows = self.ends(table, name, row)
        return rows[0].get(name.split(".")[-1]) if rows else None

    # Truth

    def true(self, table: str, where: Json, row: Row, positive: bool = True) -> bool:
        """Whether `where` holds, or, not `positive`, its opposite. That differs from a plain `not` only in rules, where a
        clause that misses an operand is false either way."""
        parts = [self.member(table, key, value, row, positive) for key, value in where.items()]
        return all(parts) if positive else any(parts)

    def member(self, table: str, key: str, value: Json, row: Row, positive: bool) -> bool:
        if key in ("$and", "$or"):
            parts = [self.true(table, part, row, positive) for part in value]
            return all(parts) if (key == "$and") == positive else any(parts)
        if key == "$not":
            return self.true(table, value, row, not positive)
        if key == "$search":
            texts = [name for name, type_ in self.oracle.types(table).items() if type_ == "text" and name != "id"]
            known = [name for name in texts if self.has_column(table, name)]
            return self.searched([row.get(name) for name in known], value, positive)
        far, last = self.walk(table, key)
        if self.has_column(far, last):
            type_ = self.oracle.types(far)[last]
            return self.compared(type_, operators(type_, value), self.cell(table, key, row), positive)
        parts = [self.quantified(table, key, word, condition, row, positive) for word, condition in value.items()]
        return all(parts) if positive else any(parts)

    def quantified(self, table: str, name: str, word: str, condition: Json, row: Row, positive: bool) -> bool:
        near, last = self.walk(table, name)
        far = self.relation(near, last)[0]
        rows = [other for at in self.ends(table, name, row) for other in self.related(near, last, at)]
        # Where the answer is yes because no row is found, every operand must be there.
        if (word == "$some") != positive and self.misses(far, condition):
            return False
        if word == "$every":
            return any(self.true(far, condition, other, False) for other in rows) != positive
        return any(self.true(far, condition, other) for other in rows) == ((word == "$some") == positive)

    def compared(self, type_: str, tests: Json, cell: Any, positive: bool) -> bool:
        parts = [
            self.compared(type_, operand, cell, not positive)
            if word == "$not"
            else self.leaf(type_, word, operand, cell, positive)
            for word, operand in tests.items()
        ]
        return all(parts) if positive else any(parts)

    def leaf(self, type_: str, word: str, operand: Json, cell: Any, positive: bool) -> bool:
        if word in ("$ne", "$nin"):
            return self.leaf(type_, "$eq" if word == "$ne" else "$in", operand, cell, not positive)
        if word == "$null":
            return (cell is None) == (operand == positive)
        if self.is_rule and word in ("$like", "$ilike") and is_variable(operand):
            return self.leaf(type_, "$eq" if word == "$like" else "$ieq", operand, cell, positive)
        if word == "$iin" and not operand:
            return self.leaf(type_, "$in", operand, cell, positive)
        if word in ("$in", "$iin") and isinstance(operand, list) and operand:
            equal = "$eq" if word == "$in" else "$ieq"
            parts = [self.leaf(type_, "$eq" if one is None else equal, one, cell, positive) for one in operand]
            return any(parts) if positive else all(parts)
        if word == "$eq" and operand is None:
            return (cell is None) == positive
        if word == "$search":
            return self.searched([cell], operand, positive)
        value = self.value(type_, word, operand)
        if value is MISSING:
            return False
        return (cell is not None and is_so(type_, word, value, cell)) == positive

    def searched(self, cells: list[Any], operand: Json, positive: bool) -> bool:
        """Every word in some cell: true without words, if there is a column at all."""
        words = self.value("text", "$search", operand)
        if words is MISSING:
            return False
        texts = [lower(cell) for cell in cells if cell is not None]
        found = all(any(lower(word) in text for text in texts) for word in words.split())
        return (bool(cells) and found) == positive

    # Operands

    def value(self, type_: str, word: str, operand: Json) -> Any:
        """The operand's value; MISSING in a rule if it has none."""
        if not self.is_rule:
            return operand
        if word == "$between":
            bounds = [self.value(type_, "$eq", bound) for bound in operand]
            return MISSING if any(bound is MISSING for bound in bounds) else bounds
        if not isinstance(operand, str) or not operand.startswith("$"):
            is_json = type_ == "json" and word in ("$eq", "$contains")
            return MISSING if operand == [] and not is_json else operand
        if operand.startswith("$$"):
            return operand[1:]
        found = self.variable(operand[1:])
        if word in ("$in", "$hasAny", "$hasAll") or (type_ == "text[]" and word == "$eq"):
            element = "text" if type_ in ("json", "text[]") else type_
            fits = isinstance(found, list) and all(fits_type(element, one) for one in found)
        elif word == "$has":
            fits = isinstance(found, str)
        else:
            fits = fits_type(type_, found)
        return found if fits and found not in ("", [], {}) else MISSING

    def variable(self, name: str) -> Any:
        who = self.who
        if name.startswith("user.claims."):
            return who.claims.get(name.removeprefix("user.claims."))
        return {"user.id": who.user_id, "user.email": who.email, "user.role": who.role, "key.id": who.key_id}[name]

    def operands(self, table: str, where: Json) -> Iterator[tuple[str, str, Json]]:
        """Type, operator and operand of every comparison. Raises Unknown for a name that this reading cannot know."""
        for key, value in where.items():
            if key in ("$and", "$or"):
                for part in value:
                    yield from self.operands(table, part)
            elif key == "$not":
                yield from self.operands(table, value)
            elif key == "$search":
                yield "text", "$search", value
            else:
                far, last = self.walk(table, key)
                if self.has_column(far, last):
                    type_ = self.oracle.types(far)[last]
                    tests = operators(type_, value)
                    for word, operand in [*tests.items(), *tests.get("$not", {}).items()]:
                        if word not in ("$not", "$null"):
                            yield type_, word, operand
                else:
                    further = self.relation(far, last)[0]
                    for condition in value.values():
                        yield from self.operands(further, condition)

    def misses(self, table: str, where: Json) -> bool:
        """Whether any operand inside is missing."""
        if not self.is_rule:
            return False
        for type_, word, operand in self.operands(table, where):
            plain = {"$nin": "$in", "$ne": "$eq"}.get(word, word)
            found = [operand]
            if plain in ("$in", "$iin") and isinstance(operand, list) and operand:
                plain, found = "$eq", operand
            if any(one is not None and self.value(type_, plain, one) is MISSING for one in found):
                return True
        return False

    # Order

    def ordered(self, table: str, rows: list[Row], order: list[tuple[str, bool, bool]]) -> list[Row]:
        """`rows` by (dotted name, descending, nulls first), ties by id in the last key's direction."""
        found = sorted(rows, key=lambda row: row["id"], reverse=order[-1][1] if order else False)
        for name, descending, nulls_first in reversed(order):
            far, last = self.walk(table, name)
            type_ = self.oracle.types(far)[last]
            keyed = [(self.cell(table, name, row), row) for row in found]
            nulls = [row for cell, row in keyed if cell is None]
            others = [(comparable(type_, cell), row) for cell, row in keyed if cell is not None]
            others.sort(key=lambda one: one[0], reverse=descending)  # stable, reversed too
            ordered = [row for _, row in others]
            found = nulls + ordered if nulls_first else ordered + nulls
        return found


def is_variable(operand: Json) -> bool:
    return isinstance(operand, str) and operand.startswith("$") and not operand.startswith("$$")


def operators(type_: str, value: Json) -> Json:
    """The operators that stand beside a column: a bare value is equality."""
    if isinstance(value, dict) and (type_ != "json" or (value and all(key.startswith("$") for key in value))):
        return value
    return {"$eq": value}


def comparable(type_: str, value: Any) -> Any:
    return Decimal(value) if type_ == "decimal" else value


def fits_type(type_: str, value: Any) -> bool:
    match type_:
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "decimal" | "float":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
        case "json":
            return value is not None
        case "date" | "timestamp" | "uuid":
            return isinstance(value, str) and len(value) == {"date": 10, "timestamp": 27, "uuid": 36}[type_]
        case _:
            return isinstance(value, str)


def is_so(type_: str, word: str, value: Any, cell: Any) -> bool:
    """One operator over a cell that is not null."""
    if word in IGNORING_CASE:
        return is_so(type_, IGNORING_CASE[word], lower(value), lower(cell))
    if word in PATTERNS and type_ == "text":
        return PATTERNS[word](cell, value)
    if word in COMPARED:
        return bool(COMPARED[word](comparable(type_, cell), comparable(type_, value)))
    match word:
        case "$eq" if type_ == "json":
            return is_same_json(cell, value)
        case "$eq":
            return bool(comparable(type_, cell) == comparable(type_, value))
        case "$in":
            return any(is_so(type_, "$eq", one, cell) for one in value)
        case "$between":
            low, high = (comparable(type_, bound) for bound in value)
            return bool(low <= comparable(type_, cell) <= high)
        case "$contains":
            return encloses(cell, value)
        case "$has" | "$hasAll" | "$hasAny":
            held = [has(cell, one) for one in ([value] if word == "$has" else value)]
            return any(held) if word == "$hasAny" else all(held)
    raise AssertionError(word)


def has(cell: Any, key: str) -> bool:
    if isinstance(cell, str):
        return cell == key
    return isinstance(cell, list | dict) and any(isinstance(one, str) and one == key for one in cell)
