"""Random documents, rules, rows, callers, filters and orders, drawn from few values so that they meet.

Everything is JSON, as it comes to the API; `tests.support.documented_rules` says what it means. The skeleton is a task tracker (a
to-one and a to-many relation between tables, one table that refers to itself); columns, rules and rows are drawn.
"""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from rows.rules.principal import Principal
from tests.support.tenants import ALICE, BOB, KEY, OPERATOR, OWNER, VISITOR

Json = Any
TABLES = ("lists", "tasks", "comments")
RELATIONS = {
    "lists": {"tasks": ("tasks", True)},
    "tasks": {
        "list": ("lists", False),
        "parent": ("tasks", False),
        "tasks": ("tasks", True),
        "comments": ("comments", True),
    },
    "comments": {"task": ("tasks", False)},
}

COLUMNS: dict[str, Json] = {
    "title": {"type": "text", "null": True},
    "select": {"type": "text", "null": True},
    "order": {"type": "integer", "null": True},
    "price": {"type": "decimal", "precision": 12, "scale": 2, "null": True},
    "weight": {"type": "float", "null": True},
    "done": {"type": "boolean", "null": True},
    "due_on": {"type": "date", "null": True},
    "seen_at": {"type": "timestamp", "null": True},
    "token": {"type": "uuid", "null": True},
    "meta": {"type": "json", "null": True},
    "tags": {"type": "text[]", "null": True},
    "status": {"type": "enum", "values": ["x", "y"], "null": True},
    "owner": {"type": "user", "null": True},
}
"""Columns that any table may have; two of them are named like words of SQL."""

VALUES: dict[str, list[Json]] = {
    "text": ["", "a", "B", "ab", "A%", "_\\", "ä", "a b", "$user.id"],
    "integer": [-1, 0, 1, 2**53 + 1],
    "decimal": ["0.00", "1.50", "-2.00", "1234567890.01"],
    "float": [0.5, -1.0, 1e20, 0.1],
    "boolean": [True, False],
    "date": ["2026-01-01", "2026-01-02", "0001-01-01"],
    "timestamp": ["2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00.500000Z", "1999-12-31T23:59:59.999999Z"],
    "uuid": ["00000000-0000-4000-8000-000000000001", "a0000000-0000-4000-8000-000000000000"],
    "json": [{"a": 1}, {}, ["a"], "a", 1, {"a": {"b": [1, None]}}, [], False],
    "text[]": [[], ["a"], ["a", "B"], ["", "a", "a"]],
    "enum": ["x", "y"],
    "user": [ALICE.user_id, BOB.user_id],
}
"""In the format of responses."""

CLAIMS: dict[str, Json] = {
    "text": "a",
    "texts": ["a", "B"],
    "integer": 1,
    "integers": [0, 1],
    "boolean": True,
    "date": "2026-01-01",
    "json": {"a": 1},
}
UNSET: list[Json] = [None, [], "", {}, ["a", 1], 7.5]
"""What a claim may hold instead, and be missing or of no use."""


def type_of(document: Json, table: str) -> dict[str, str]:
    """The columns of a table by stored name, with their types, without `id` and the two timestamps."""
    return {
        f"{key}_id" if column["type"] in ("reference", "user") else key: column["type"]
        for key, column in document["tables"][table]["columns"].items()
    }


# Conditions

_EQUALITY = ["$eq", "$ne", "$in", "$nin", "$null"]
_RANGES = ["$gt", "$gte", "$lt", "$lte", "$between"]
_PATTERNS = [
    "$ieq",
    "$iin",
    "$like",
    "$ilike",
    "$contains",
    "$icontains",
    "$startsWith",
    "$istartsWith",
    "$endsWith",
    "$iendsWith",
    "$search",
]
_HAS = ["$has", "$hasAny", "$hasAll"]
OPERATORS = {
    "text": _EQUALITY + _RANGES + _PATTERNS,
    "boolean": _EQUALITY,
    "enum": _EQUALITY,
    "user": _EQUALITY,
    "reference": _EQUALITY,
    "json": ["$eq", "$ne", "$null", "$contains", *_HAS],
    "text[]": ["$eq", "$ne", "$null", *_HAS],
} | dict.fromkeys(("integer", "decimal", "float", "date", "timestamp", "uuid"), _EQUALITY + _RANGES)

_patterns = st.sampled_from(["a", "%", "_", "a%", "%B", "\\%", "A_", "ä"])
_parts = st.sampled_from(["a", "B", "b", "%", "_", "\\", "ä", " "])
_words = st.sampled_from(["a", "A b", "%", "ä B", "a\\"])


class Conditions:
    """Conditions over one document. `is_rule`: with variables, and nothing that a rule may not hold."""

    def __init__(self, document: Json, ids: list[str], *, is_rule: bool = False) -> None:
        self.document = document
        self.ids = ids
        self.is_rule = is_rule

    def of(self, table: str, depth: int = 2) -> st.SearchStrategy[Json]:
        """Objects that stand where `where` does."""
        members = self.member(table, depth)
        return st.lists(members, min_size=1, max_size=2).map(
            lambda found: {k: v for part in found for k, v in part.items()}
        )

    def member(self, table: str, depth: int) -> st.SearchStrategy[Json]:
        simple = self.comparison(table)
        if depth == 0:
            return simple
        inner = self.of(table, depth - 1)
        several = st.lists(inner, min_size=1, max_size=2)
        return st.one_of(
            simple,
            simple,
            st.builds(lambda parts: {"$or": parts}, several),
            st.builds(lambda parts: {"$and": parts}, several),
            st.builds(lambda part: {"$not": part}, inner),
            self.quantified(table, depth),
            st.builds(lambda words: {"$search": words}, self.operand("text", "$search")),
        )

    def quantified(self, table: str, depth: int) -> st.SearchStrategy[Json]:
        ways = [(name, far) for name, (far, _) in RELATIONS[table].items()]
        ways += [
            (f"{name}.{further}", beyond)
            for name, (far, many) in RELATIONS[table].items()
            if not many
            for further, (beyond, _) in RELATIONS[far].items()
        ]
        return st.sampled_from(ways).flatmap(
            lambda way: st.builds(
                lambda word, condition: {way[0]: {word: condition}},
                st.sampled_from(["$some", "$none", "$every"]),
                self.of(way[1], depth - 1),
            )
        )

    def comparison(self, table: str) -> st.SearchStrategy[Json]:
        found = [(name, type_) for name, type_ in type_of(self.document, table).items()]
        for relation, (far, many) in RELATIONS[table].items():
            if not many:
                found += [(f"{relation}.{name}", type_) for name, type_ in type_of(self.document, far).items()]
        return st.sampled_from(found).flatmap(lambda one: self.of_column(*one).map(lambda test: {one[0]: test}))

    def of_column(self, name: str, type_: str) -> st.SearchStrategy[Json]:
        operators = st.sampled_from(OPERATORS[type_]).flatmap(
            lambda word: self.operand(type_, word).map(lambda operand: {word: operand})
        )
        return st.one_of(
            operators, operators.map(lambda found: {"$not": found}), self.operand(type_, "$eq").filter(self.is_plain)
        )

    @staticmethod
    def is_plain(operand: Json) -> bool:
        """Whether an operand can stand without its operator."""
        return not isinstance(operand, dict) or not any(key.startswith("$") for key in operand)

    def operand(self, type_: str, word: str) -> st.SearchStrategy[Json]:
        values = st.sampled_from(self.ids if type_ == "reference" else VALUES[type_]).map(self.escaped)
        match word:
            case "$null":
                return st.booleans()
            case "$in" | "$nin":
                return st.lists(st.none() | values | self.variables(type_), max_size=3) | self.variables(
                    type_, many=True
                )
            case "$iin":
                return st.lists(st.none() | _parts | self.variables("text"), max_size=3)
            case "$between":
                return st.lists(values | self.variables(type_), min_size=2, max_size=2)
            case "$eq" | "$ne":
                return st.none() | values | self.variables(type_)
            case "$has":
                return st.sampled_from(["a", "B", ""]) | self.variables("text")
            case "$hasAny" | "$hasAll":
                return st.lists(st.sampled_from(["a", "B", ""]), max_size=2) | self.variables("text", many=True)
            case "$like" | "$ilike":
                return _patterns | self.variables("text")
            case "$search":
                return _words | self.variables("text")
            case "$contains" if type_ == "json":
                return values | self.variables("json")
            case "$gt" | "$gte" | "$lt" | "$lte":
                return values | self.variables(type_)
        return _parts | self.variables("text")

    def escaped(self, value: Json) -> Json:
        return f"${value}" if self.is_rule and isinstance(value, str) and value.startswith("$") else value

    def variables(self, type_: str, *, many: bool = False) -> st.SearchStrategy[Json]:
        """Variables whose value may be of the type; nothing for filters."""
        if not self.is_rule:
            return st.nothing()
        if type_ in ("text", "user", "enum", "reference"):
            texts = ["$user.claims.texts"] if many else ["$user.id", "$user.claims.text", "$user.role", "$key.id"]
            return st.sampled_from(texts)
        if type_ == "integer":
            return st.just("$user.claims.integers" if many else "$user.claims.integer")
        if many:
            return st.nothing()
        return st.just({"text[]": "$user.claims.texts"}.get(type_, f"$user.claims.{type_}"))


# Documents, callers, rows


@st.composite
def documents(draw: st.DrawFn) -> Json:
    """A schema document with rules."""
    tables: Json = {}
    for table in TABLES:
        extra = draw(st.lists(st.sampled_from([*COLUMNS]), min_size=2, max_size=6, unique=True))
        tables[table] = {"columns": {"title": COLUMNS["title"], **{name: COLUMNS[name] for name in extra}}}
    tables["tasks"]["columns"] |= {
        "list": {"type": "reference", "to": "lists", "on_delete": "cascade", "null": True},
        "parent": {"type": "reference", "to": "tasks", "on_delete": "cascade", "null": True},
    }
    tables["comments"]["columns"]["task"] = {"type": "reference", "to": "tasks", "on_delete": "cascade", "null": True}
    document = {"tables": tables}
    for table in TABLES:
        rules: Json = {}
        for role in draw(
            st.sampled_from(
                [
                    [],
                    ["user"],
                    ["user"],
                    ["user", "anonymous"],
                    ["user", "editor"],
                    ["user", "server"],
                    ["server", "member"],
                    ["anonymous"],
                ]
            )
        ):
            read = draw(st.lists(read_rules(document, table), min_size=1, max_size=3))
            rules[role] = {"read": read[0] if len(read) == 1 else read}
        tables[table]["rules"] = rules
    return document


@st.composite
def read_rules(draw: st.DrawFn, document: Json, table: str) -> Json:
    """One rule of a `read`."""
    rule: Json = {}
    if draw(st.integers(0, 3)):
        rule["where"] = draw(Conditions(document, ids_of(table), is_rule=True).of(table, depth=draw(st.integers(0, 2))))
    names = [*type_of(document, table)]
    hidden = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
    match draw(st.integers(0, 3)):
        case 0:
            rule["columns"] = ["*", *(f"-{name}" for name in hidden)]
        case 1:
            rule["columns"] = hidden
        case _:
            pass
    return rule


def ids_of(table: str) -> list[str]:
    """The ids that rows of a table may have, and one that none has."""
    return [f"{table}-{number}" for number in range(5)]


@st.composite
def callers(draw: st.DrawFn) -> list[Principal]:
    """Alice, with some claims; Bob, an editor; a key; a member; an anonymous caller; an operator."""
    claims = {name: value for name, value in CLAIMS.items() if draw(st.booleans())}
    claims |= {name: draw(st.sampled_from(UNSET)) for name in CLAIMS if name not in claims and draw(st.booleans())}
    alice, bob = replace(ALICE, claims=claims), replace(BOB, role="editor", claims={**CLAIMS, "text": "B"})
    return [alice, bob, KEY, OWNER, VISITOR, OPERATOR]


@st.composite
def rows(draw: st.DrawFn, document: Json) -> dict[str, list[Json]]:
    """Rows to be inserted by an operator, by table, such that what is referred to comes first."""
    found: dict[str, list[Json]] = {}
    for table in TABLES:
        types = type_of(document, table)
        found[table] = []
        for row_id in ids_of(table)[: draw(st.integers(1, 4))]:
            row: Json = {"id": row_id}
            for name, type_ in types.items():
                if type_ == "reference":
                    far = found[{"list_id": "lists", "parent_id": "tasks", "task_id": "tasks"}[name]]
                    row[name] = draw(st.sampled_from([None, *(one["id"] for one in far)]))
                else:
                    row[name] = draw(st.sampled_from([None, *VALUES[type_]]))
            found[table].append(row)
    return found


@st.composite
def orders(draw: st.DrawFn, document: Json, table: str) -> list[tuple[str, bool, bool]]:
    """Up to two keys of an order: dotted name, descending, nulls first."""
    names = [name for name, type_ in type_of(document, table).items() if type_ not in ("json", "text[]")]
    for relation, (far, many) in RELATIONS[table].items():
        if not many:
            names += [
                f"{relation}.{name}"
                for name, type_ in type_of(document, far).items()
                if type_ not in ("json", "text[]")
            ]
    chosen = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
    return [(name, draw(st.booleans()), draw(st.booleans())) for name in chosen]


def choices(document: Json, table: str) -> st.SearchStrategy[list[str]]:
    """Some columns of a table, hidden ones among them."""
    names = [*type_of(document, table), "created_at"]
    return st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)


def order_text(order: list[tuple[str, bool, bool]]) -> str | None:
    """An order as the API takes it."""
    return (
        ",".join(
            f"{name}.{'desc' if descending else 'asc'}.{'nullsfirst' if nulls_first else 'nullslast'}"
            for name, descending, nulls_first in order
        )
        or None
    )
