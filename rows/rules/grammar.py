"""The grammar of filters (`read_filter`), rules (`read_rule`) and webhooks' filters (`read_record`): parsed JSON
becomes conditions. Depth, nodes, lists and patterns are bounded before they are walked; there are no regular
expressions. Operators: `rows.rules.operators`; grammar: docs/reference/filters.md."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rows.rules.conditions import (
    FALSE,
    NO_FILTER,
    TRUE,
    Compare,
    Condition,
    Filter,
    IsNull,
    Leaf,
    Not,
    Path,
    Quantified,
    Search,
    Slot,
    Variable,
    all_of,
    any_of,
    guarded,
    negate,
    operands,
    with_leaves,
)
from rows.rules.name_resolver import (
    InvalidCondition,
    NameResolver,
    Use,
    join_path,
    refuse_unknown,
    refuse_user,
    unknown_operator,
)
from rows.rules.operand_reader import OperandReader
from rows.rules.operators import (
    ALL_OPERATORS,
    COMBINATORS,
    MEMBER_OPERATORS,
    OPERATORS,
    PATTERN_FORMS,
    QUANTIFIERS,
    RANGE_OPERATORS,
)
from rows.rules.variables import read_literal
from rows.schema.identifiers import did_you_mean
from rows.schema.model import SQL_TYPES, Column, Hop
from rows.schema.types import Type
from rows.schema.values import ARRAYS

MAX_DEPTH: Final = 6
MAX_NODES: Final = 100
MAX_HOPS: Final = 3
TOO_DEEP: Final = f"conditions may be nested {MAX_DEPTH} levels deep. A path over several relations is one level."


class _Reader(OperandReader):
    __slots__ = ("expanding", "is_loose", "nodes")

    def __init__(self, resolver: NameResolver, table: str, use: Use) -> None:
        super().__init__(resolver, table, use)
        self.expanding: list[str] = []
        self.nodes = 0
        self.is_loose = False
        """A condition became TRUE or FALSE, so values may be unused."""

    def condition(self, table: str, document: Any, path: str, depth: int) -> Condition:
        if not isinstance(document, Mapping):
            raise InvalidCondition(path, "wrong_type", "must be an object.")
        if depth > MAX_DEPTH:
            raise InvalidCondition(path, "too_deep", TOO_DEEP)
        if not document:
            self.count(path)
            self.is_loose = True
            return TRUE
        found = [self.entry(table, key, value, path, depth) for key, value in document.items()]
        return found[0] if len(found) == 1 else all_of(found)

    def count(self, path: str) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise InvalidCondition(path, "too_many", f"at most {MAX_NODES} conditions in one filter.")

    def entry(self, table: str, key: Any, value: Any, path: str, depth: int) -> Condition:
        here = join_path(path, key)
        if not isinstance(key, str):  # never from JSON, but from a function's or a command's own objects
            raise InvalidCondition(here, "wrong_type", "must be named by a string.")
        if not key.startswith("$"):
            return self.column_or_relation(table, key, value, here, depth)
        self.count(here)
        match key:
            case "$and" | "$or":
                if not isinstance(value, list):
                    raise InvalidCondition(here, "wrong_type", "must be a list of conditions.")
                if not value:
                    raise InvalidCondition(here, "invalid", "must have at least one condition.")
                parts = [
                    self.condition(table, part, join_path(here, index), depth + 1) for index, part in enumerate(value)
                ]
                return all_of(parts) if key == "$and" else any_of(parts)
            case "$not":
                return negate(self.condition(table, value, here, depth + 1))
            case "$search":
                return self.search((), self.resolver.searchable(table), value, here)
            case "$is":
                return self.named_condition(table, value, here, depth)
        if key in ALL_OPERATORS:
            raise InvalidCondition(here, "misplaced", "needs a column or a relation before it.")
        raise unknown_operator(here, key, (*COMBINATORS, "$search", "$is"))

    def named_condition(self, table: str, name: Any, path: str, depth: int) -> Condition:
        """A named condition, expanded in place: its name counts as a condition, not as a level. A rule resolves it with
        the author's rights, a filter with the caller's; a condition that the caller may not read is unknown."""
        if not isinstance(name, str):
            raise InvalidCondition(path, "wrong_type", "must be the name of a condition.")
        is_author = self.use in ("rule", "check")
        document = self.resolver.named_condition(table, name)
        if document is None:
            names = self.resolver.schema.tables[table].conditions if is_author else ()
            raise _no_condition(path, did_you_mean(name, names))
        called = f"{table}.{name}"
        if called in self.expanding:
            chain = " → ".join([*self.expanding, called])
            raise InvalidCondition(path, "cycle", f"conditions must not refer to each other in a cycle: {chain}.")
        self.expanding.append(called)
        try:
            return self.condition(table, document if is_author else read_literal(document, path), path, depth)
        except InvalidCondition as error:
            if is_author or error.code in ("too_deep", "too_many"):
                raise
            raise _no_condition(path) from None
        finally:
            self.expanding.pop()

    def column_or_relation(self, table: str, key: str, value: Any, path: str, depth: int) -> Condition:
        self.table = table
        column = self.resolver.column(table, key)
        if column is not None:
            return self.column(Path((), key), column, value, path)
        hops, far, last = self.follow_path(table, key, path)
        if hops:
            column = self.resolver.column(far, last)
            if column is not None:
                return self.column(Path(hops, last), column, value, path)
        relation = self.resolver.relation(far, last)
        if relation is None:
            refuse_user(path, far, last, self.resolver)
            refuse_unknown(path, last, self.resolver.names(far))
        return self.quantified(hops, relation, value, path, depth)

    def follow_path(self, table: str, dotted: str, path: str) -> tuple[tuple[Hop, ...], str, str]:
        """A dotted name: its to-one steps, the final table, and the last part, unresolved."""
        if "." not in dotted:
            return (), table, dotted
        if self.use == "record":
            refuse_unknown(path)
        *steps, last = dotted.split(".", MAX_HOPS + 1)
        hops: list[Hop] = []
        for step in steps:
            hop = self.resolver.relation(table, step)
            if hop is None:
                refuse_user(path, table, step, self.resolver)
                refuse_unknown(path, step, self.resolver.names(table))
            if hop.many:
                raise InvalidCondition(
                    path, "to_many", f'"{step}" leads to many rows: use {{"{step}": {{"$some": {{…}}}}}}.'
                )
            hops.append(hop)
            table = hop.table
        if len(hops) > MAX_HOPS:
            raise InvalidCondition(path, "too_deep", f"a path may take {MAX_HOPS} steps.")
        return tuple(hops), table, last

    def quantified(self, hops: tuple[Hop, ...], relation: Hop, value: Any, path: str, depth: int) -> Condition:
        if self.use == "record":
            refuse_unknown(path)
        is_short = isinstance(value, Mapping) and value.keys() == {"$is"} and not relation.many
        if is_short:
            value = {"$some": value}
        if not isinstance(value, Mapping) or not value or not all(key in QUANTIFIERS for key in value):
            raise _not_quantified(path, relation, value)
        found: list[Condition] = []
        for key, inner in value.items():
            here = path if is_short else join_path(path, key)
            self.count(here)
            condition = self.condition(relation.table, inner, here, depth + 1)
            some: Condition = Quantified("some", relation, negate(condition) if key == "$every" else condition)
            for hop in reversed(hops):
                some = Quantified("some", hop, some)
            # `$none` negates `$some`; `$every` negates that some row does not meet it. So both are true if a step of
            # the path has no row.
            found.append(some if key == "$some" else negate(some))
        return found[0] if len(found) == 1 else all_of(found)

    def column(self, cell: Path, column: Column, value: Any, path: str) -> Condition:
        if isinstance(value, Mapping) and (column.type != "json" or _is_operators(value)):
            return self.operators(cell, column, value, path)
        self.count(path)
        return self.equal(cell, column, value, path)

    def operators(self, cell: Path, column: Column, document: Mapping[str, Any], path: str) -> Condition:
        if not document:
            raise InvalidCondition(path, "invalid", "must have at least one operator.")
        allowed = OPERATORS[column.type]
        found: list[Condition] = []
        for key, value in document.items():
            here = join_path(path, key)
            self.count(here)
            if key in allowed:
                found.append(self.operator(cell, column, key, value, here))
            elif key == "$not":
                if not isinstance(value, Mapping):
                    raise InvalidCondition(here, "wrong_type", "must be an object of operators.")
                if "$not" in value:  # nothing is gained by more, and recursion stays flat
                    raise InvalidCondition(here, "too_deep", "must not hold another $not.")
                found.append(negate(self.operators(cell, column, value, here)))
            elif key in ALL_OPERATORS:
                raise InvalidCondition(here, "misplaced", f"does not fit a column of type {column.type}.")
            else:
                raise unknown_operator(here, key, allowed)
        return found[0] if len(found) == 1 else all_of(found)

    def operator(self, cell: Path, column: Column, key: str, value: Any, path: str) -> Condition:
        match key:
            case "$eq":
                return self.equal(cell, column, value, path)
            case "$ne":
                return negate(self.equal(cell, column, value, path))
            case "$in":
                return self.among(cell, column, value, path)
            case "$nin":
                return negate(self.among(cell, column, value, path))
            case "$null":
                if not isinstance(value, bool):
                    raise InvalidCondition(path, "wrong_type", "must be true or false.")
                return IsNull(cell) if value else Not(IsNull(cell))
            case "$between":
                if not isinstance(value, list) or len(value) != 2:
                    raise InvalidCondition(path, "wrong_type", "must be a list of two values.")
                low, high = (
                    self.comparable(cell, column, bound, join_path(path, index)) for index, bound in enumerate(value)
                )
                needs = tuple(bound for bound in (low, high) if isinstance(bound, Variable))
                return all_of([Compare(cell, "gte", low, needs), Compare(cell, "lte", high, needs)])
            case "$iin":
                return self.among_ignoring_case(cell, column, value, path)
            case "$search":
                found = self.search(cell.hops, (cell.column,), value, path)
                return Not(IsNull(cell)) if found == TRUE else found  # no words, and a null matches nothing
            case "$contains" if column.type == "json":
                self.check_contained(value, path)
                return Compare(cell, "encloses", self.operand("jsonb", value, path))
        if (range_operator := RANGE_OPERATORS.get(key)) is not None:
            return Compare(cell, range_operator, self.comparable(cell, column, value, path))
        if key in MEMBER_OPERATORS:
            return self.member_of(cell, key, value, path)
        operator, form = PATTERN_FORMS[key]
        if form == "exact":
            self.check_email(column, value, path)
        return Compare(cell, operator, self.operand("text", value, path, form))

    def equal(self, cell: Path, column: Column, value: Any, path: str) -> Condition:
        if value is None:
            return IsNull(cell)
        operand = self.comparable(cell, column, value, path)
        return _equals(cell, operand) if isinstance(operand, Variable) else Compare(cell, "eq", operand)

    def among(self, cell: Path, column: Column, value: Any, path: str) -> Condition:
        array = ARRAYS[SQL_TYPES[column.type]]
        if (variable := self.variable(array, value, path)) is not None:
            return Compare(cell, "in", variable)
        self.check_list(value, path)
        literals: list[Any] = []
        found: list[Condition] = []
        for index, item in enumerate(value):
            here = join_path(path, index)
            if item is None:
                found.append(IsNull(cell))
            elif (variable := self.variable(SQL_TYPES[column.type], item, here)) is not None:
                found.append(_equals(cell, variable))
            else:
                literals.append(self.literal(column, item, here))
        if literals or not found:
            found.insert(0, Compare(cell, "in", self.bind(array, tuple(literals))))
        return any_of(found)

    def among_ignoring_case(self, cell: Path, column: Column, value: Any, path: str) -> Condition:
        self.check_list(value, path)
        if not value:
            return self.among(cell, column, value, path)
        found: list[Condition] = []
        for index, item in enumerate(value):
            here = join_path(path, index)
            self.count(here)
            self.check_email(column, item, here)
            found.append(
                IsNull(cell) if item is None else Compare(cell, "ilike", self.operand("text", item, here, "exact"))
            )
        return any_of(found)

    def member_of(self, cell: Path, key: str, value: Any, path: str) -> Condition:
        operator, form = MEMBER_OPERATORS[key]
        if key != "$has" and not isinstance(value, str):
            self.check_list(value, path)
        type_: Type = "text" if key == "$has" else "text[]"
        return Compare(cell, operator, self.operand(type_, value, path, form))

    def search(self, hops: tuple[Hop, ...], columns: Sequence[str], value: Any, path: str) -> Condition:
        operand = self.operand("text", value, path, "words")
        if not columns or not (isinstance(operand, Variable) or self.values[-1]):
            self.is_loose = True
            return TRUE if columns else FALSE  # no words: everything matches; no readable column: nothing matches
        return Search(tuple(Path(hops, column) for column in columns), operand)


def _no_condition(path: str, suggestion: str = "") -> InvalidCondition:
    return InvalidCondition(
        path, "unknown", f"there is no condition of this name that can be used here{suggestion or '.'}"
    )


def _equals(cell: Path, variable: Variable) -> Condition:
    """Emails are stored in lower case: both sides are compared so."""
    if variable.name == "user.email" and variable.type == "text":
        return Compare(cell, "ilike", replace(variable, form="exact"))
    return Compare(cell, "eq", variable)


def _is_operators(value: Mapping[str, Any]) -> bool:
    return bool(value) and all(key.startswith("$") for key in value)


def _not_quantified(path: str, relation: Hop, value: Any) -> InvalidCondition:
    takes = QUANTIFIERS if relation.many else (*QUANTIFIERS, "$is")
    for key in value if isinstance(value, Mapping) else ():
        if isinstance(key, str) and key.startswith("$") and key not in {*ALL_OPERATORS, "$is"}:
            return unknown_operator(join_path(path, key), key, takes)
    hint = "is a relation: it takes $some, $none or $every"
    more = "." if relation.many else f', or $is; its id is "{relation.column}".'
    return InvalidCondition(path, "wrong_type", hint + more)


def read_rule(document: Mapping[str, Any], table: str, resolver: NameResolver, use: Use = "rule") -> Condition:
    """Unguarded (`conditions.guarded`). Raises InvalidCondition."""
    reader = _Reader(resolver, table, use)
    condition = reader.condition(table, document, "", 1)
    resolver.conditions += reader.nodes
    return condition


def read_record(document: Mapping[str, Any], table: str, resolver: NameResolver) -> Condition:
    """A webhook's filter for `evaluator`: columns of a record and `$old.<column>`, guarded: a comparison with a missing
    old value is false. Raises InvalidCondition."""
    return guarded(_Reader(resolver, table, "record").condition(table, document, "", 1))


def read_filter(document: Any, table: str, resolver: NameResolver) -> Filter:
    reader = _Reader(resolver, table, "filter")
    shape = reader.condition(table, document, "", 1)
    if not reader.wires:
        return Filter(shape) if shape != TRUE else NO_FILTER
    found = Filter(shape, tuple(reader.wires), tuple(reader.values))
    return _compact(found) if reader.is_loose else found


def _compact(found: Filter) -> Filter:
    """The filter without values of dropped conditions: every value must be bound."""
    used = sorted({operand.index for operand in operands(found.shape) if isinstance(operand, Slot)})
    numbers = {old: new for new, old in enumerate(used)}

    def renumbered(leaf: Leaf) -> Leaf:
        if isinstance(leaf, IsNull) or not isinstance(leaf.operand, Slot):
            return leaf
        return replace(leaf, operand=Slot(numbers[leaf.operand.index], leaf.operand.type))

    return Filter(
        with_leaves(found.shape, renumbered),
        tuple(found.wire[index] for index in used),
        tuple(found.values[index] for index in used),
    )
