"""The grammar of filters and rules: parsed JSON becomes conditions.

    read_filter   `{"done": false, "list.name": {"$startsWith": "A"}}`   → Filter, shape and values (rows.query.where)
    read_rule     a rule's `where` or `check`, with variables            → Condition (rows.rules.rules)
    read_record   a webhook's filter over `record` and `$old`            → Condition (webhooks)

Every name goes through a `Sight`, which knows what this caller may know of, and nothing else: an unknown name and a
hidden one take the same way to the same bytes. Everything is bounded before it is walked (T10): depth,
nodes, list lengths, pattern lengths; there are no regular expressions. `rows.rules.operators` says which operators
there are, docs/reference/filters.md has the grammar for users.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NoReturn, Protocol

from rows.rules.conditions import (
    FALSE,
    NO_FILTER,
    OLD,
    TRUE,
    And,
    Compare,
    Condition,
    Constant,
    Filter,
    Form,
    Hop,
    IsNull,
    Not,
    Operand,
    Or,
    OtherCell,
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
)
from rows.rules.operators import (
    ALL_OPERATORS,
    COMBINATORS,
    MEMBER_OPERATORS,
    OPERATORS,
    PATTERN_FORMS,
    QUANTIFIERS,
    RANGE_OPERATORS,
    shape_operand,
    type_of_operand,
)
from rows.schema.identifiers import did_you_mean
from rows.schema.model import ID, SQL_TYPES, Column
from rows.schema.types import Type
from rows.schema.values import ARRAYS, InvalidValue, read, read_operand, wire

MAX_DEPTH: Final = 6
MAX_NODES: Final = 100
MAX_LIST: Final = 1_000
MAX_HOPS: Final = 3


class InvalidCondition(Exception):
    """A filter or rule that cannot be understood. `path` leads to the offending node (`$or.1.list.name`)."""

    def __init__(self, path: str, code: str, message: str) -> None:
        self.path = path
        self.code = code
        self.message = message
        super().__init__(f"{path}: {message}" if path else message)


class NameResolver(Protocol):
    """What one caller may know of a schema: the only way from a name to a column or relation."""

    @property
    def token(self) -> int:
        """Equal for equal sights of one schema version, never reused: a key for what was parsed under it."""

    def column(self, table: str, name: str) -> Column | None:
        """The column by its stored name, if this caller may read it in some row; `null` if its cells may read null."""

    def relation(self, table: str, name: str) -> Hop | None:
        """The relation, if the far table has a read rule for this caller and the column that links is readable."""

    def names(self, table: str) -> Iterable[str]:
        """All that `column` and `relation` know: what may be proposed in the place of a name that they do not."""

    def named_condition(self, table: str, name: str) -> Mapping[str, Any] | None:
        """The table's named condition as its author wrote it; None if there is none."""

    def searchable(self, table: str) -> tuple[str, ...]:
        """The readable columns of type text, without `id`: what a `$search` without a column looks through."""

    @property
    def user_fields(self) -> tuple[str, ...]:
        """The fields of users that this caller may embed; none unless the document opens them."""


Use = Literal["filter", "rule", "check", "record"]
"""A caller's filter; a rule's `where`; a rule's `check`, which also knows `$old`; a webhook's filter, which knows no
other variable."""

_TEXT_VARIABLES: Final = frozenset({"user.id", "user.email", "user.role", "key.id"})
_CLAIM: Final = re.compile(r"user\.claims(\.[A-Za-z0-9_-]{1,64}){1,5}", re.ASCII)


# Reading a condition


class _Reader:
    """One walk over one document. A filter's values are numbered into slots, and a text that begins with `$` is the
    text it is; the other uses bind literals as constants and know variables."""

    __slots__ = ("base", "expanding", "is_loose", "nodes", "resolver", "table", "use", "values", "wires")

    def __init__(self, resolver: NameResolver, table: str, use: Use) -> None:
        self.resolver = resolver
        self.base = table
        self.table = table
        """The table of the column that is being read, unless a path leads on from there."""
        self.use = use
        self.expanding: list[str] = []
        """The named conditions that the reader is inside of, outermost first."""
        self.nodes = 0
        self.is_loose = False
        """Some condition came out as TRUE or FALSE, and may have taken others, with their values, with it."""
        self.wires: list[bytes] = []
        self.values: list[Any] = []

    def condition(self, table: str, document: Any, path: str, depth: int) -> Condition:
        if not isinstance(document, Mapping):
            raise InvalidCondition(path, "wrong_type", "must be an object.")
        if depth > MAX_DEPTH:
            raise InvalidCondition(path, "too_deep", f"conditions may be nested {MAX_DEPTH} levels deep.")
        if not document:
            self.count(path)
            self.is_loose = True
            return TRUE
        found = [self.member(table, key, value, path, depth) for key, value in document.items()]
        return found[0] if len(found) == 1 else all_of(found)

    def count(self, path: str) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise InvalidCondition(path, "too_many", f"at most {MAX_NODES} conditions in one filter.")

    def member(self, table: str, key: Any, value: Any, path: str, depth: int) -> Condition:
        here = _join(path, key)
        if not isinstance(key, str):  # never from JSON, but from a function's or a command's own objects
            raise InvalidCondition(here, "wrong_type", "must be named by a string.")
        if not key.startswith("$"):
            return self.named(table, key, value, here, depth)
        self.count(here)
        match key:
            case "$and" | "$or":
                if not isinstance(value, list):
                    raise InvalidCondition(here, "wrong_type", "must be a list of conditions.")
                if not value:
                    raise InvalidCondition(here, "invalid", "must have at least one condition.")
                parts = [self.condition(table, part, _join(here, index), depth + 1) for index, part in enumerate(value)]
                return all_of(parts) if key == "$and" else any_of(parts)
            case "$not":
                return negate(self.condition(table, value, here, depth + 1))
            case "$search":
                return self.search((), self.resolver.searchable(table), value, here)
            case "$is":
                return self.named_condition(table, value, here, depth)
        if key in ALL_OPERATORS:
            raise InvalidCondition(here, "misplaced", "needs a column or a relation before it.")
        raise _unknown_operator(here, key, (*COMBINATORS, "$search", "$is"))

    def named_condition(self, table: str, name: Any, path: str, depth: int) -> Condition:
        """A condition that the table's author named, read in its place.

        Rules read it with the author's rights. In a caller's filter it is read as if the caller had written it: what
        the caller may not name, or a variable, makes it unknown.
        """
        if not isinstance(name, str):
            raise InvalidCondition(path, "wrong_type", "must be the name of a condition.")
        document = self.resolver.named_condition(table, name)
        if document is None:
            raise InvalidCondition(path, "unknown", _NO_CONDITION)
        called = f"{table}.{name}"
        if called in self.expanding:
            chain = " → ".join([*self.expanding, called])
            raise InvalidCondition(path, "cycle", f"conditions must not refer to each other in a cycle: {chain}.")
        self.expanding.append(called)
        try:
            if self.use in ("rule", "check"):
                return self.condition(table, document, path, depth + 1)
            return self.condition(table, _without_variables(document, path), path, depth + 1)
        except InvalidCondition as error:
            if self.use in ("rule", "check") or error.code in ("too_deep", "too_many"):
                raise
            raise InvalidCondition(path, "unknown", _NO_CONDITION) from None
        finally:
            self.expanding.pop()

    def named(self, table: str, key: str, value: Any, path: str, depth: int) -> Condition:
        self.table = table
        column = self.resolver.column(table, key)
        if column is not None:
            return self.column(Path((), key), column, value, path)
        hops, far, last = self.walk(table, key, path)
        if hops:
            column = self.resolver.column(far, last)
            if column is not None:
                return self.column(Path(hops, last), column, value, path)
        relation = self.resolver.relation(far, last)
        if relation is None:
            _refuse_user(path, far, last, self.resolver)
            _refuse_unknown(path, last, self.resolver.names(far))
        return self.quantified(hops, relation, value, path, depth)

    def walk(self, table: str, dotted: str, path: str) -> tuple[tuple[Hop, ...], str, str]:
        """The to-one steps of a dotted name, the table they end at, and the last part, still unresolved."""
        if "." not in dotted:
            return (), table, dotted
        if self.use == "record":
            _refuse_unknown(path)
        *steps, last = dotted.split(".", MAX_HOPS + 1)
        hops: list[Hop] = []
        for step in steps:
            hop = self.resolver.relation(table, step)
            if hop is None:
                _refuse_user(path, table, step, self.resolver)
                _refuse_unknown(path, step, self.resolver.names(table))
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
            _refuse_unknown(path)
        if isinstance(value, Mapping) and value.keys() == {"$is"} and not relation.many:
            value = {"$some": value}
        if not isinstance(value, Mapping) or not value or not all(key in QUANTIFIERS for key in value):
            raise InvalidCondition(path, "wrong_type", _relation_takes(relation))
        found: list[Condition] = []
        for key, inner in value.items():
            here = _join(path, key)
            self.count(here)
            condition = self.condition(relation.table, inner, here, depth + 1)
            some: Condition = Quantified("some", relation, negate(condition) if key == "$every" else condition)
            for hop in reversed(hops):
                some = Quantified("some", hop, some)
            # None is not some, every is not some that are not; so both hold where a step on the way leads nowhere.
            found.append(some if key == "$some" else negate(some))
        return found[0] if len(found) == 1 else all_of(found)

    # One column

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
            here = _join(path, key)
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
                raise _unknown_operator(here, key, allowed)
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
                    self.comparable(cell, column, bound, _join(path, index)) for index, bound in enumerate(value)
                )
                needs = tuple(bound for bound in (low, high) if isinstance(bound, Variable))
                return all_of([Compare(cell, "gte", low, needs), Compare(cell, "lte", high, needs)])
            case "$iin":
                return self.among_ignoring_case(cell, column, value, path)
            case "$search":
                return self.search(cell.hops, (cell.column,), value, path)
            case "$contains" if column.type == "json":
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
            here = _join(path, index)
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
            here = _join(path, index)
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
            return TRUE if columns else FALSE  # without words nothing is asked; without columns nothing is found
        return Search(tuple(Path(hops, column) for column in columns), operand)

    # Operands

    def comparable(self, cell: Path, column: Column, value: Any, path: str) -> Operand:
        """An operand that stands for one cell of `column`."""
        type_ = SQL_TYPES[column.type]
        if isinstance(value, Mapping) and value.keys() == {"$column"} and column.type != "json":
            return self.other_cell(cell, type_, value["$column"], path)
        if (variable := self.variable(type_, value, path)) is not None:
            return variable
        if column.type == "text[]":
            self.check_list(value, path)
        return self.bind(type_, self.literal(column, value, path))

    def other_cell(self, cell: Path, type_: Type, name: Any, path: str) -> OtherCell:
        """The operand `{"$column": name}`: a column of the table at the end of the path of `cell`."""
        table = cell.hops[-1].table if cell.hops else self.table
        if not isinstance(name, str):
            raise InvalidCondition(path, "wrong_type", "$column must be the name of a column.")
        column = self.resolver.column(table, name)
        if column is None:
            _refuse_unknown(path, name, self.resolver.names(table))
        if SQL_TYPES[column.type] != type_:
            raise InvalidCondition(path, "wrong_type", f"{name} is of type {column.type}, which does not fit.")
        return OtherCell(name, type_)

    def literal(self, column: Column, value: Any, path: str) -> Any:
        if self.use == "filter" and isinstance(value, str) and value.startswith("$") and _holds_ids(column):
            # No id begins with `$`: the caller means a rule's variable and would take an empty list for a correct
            # answer.
            message = 'is no id: variables such as "$user.id" stand in rules only, a filter gives the value itself.'
            raise InvalidCondition(path, "invalid", message)
        self.check_email(column, value, path)
        try:
            return read_operand(column, self.unescaped(value, path))
        except InvalidValue as error:
            raise InvalidCondition(path, error.code, error.continued) from None

    def operand(self, type_: Type, value: Any, path: str, form: Form = "plain") -> Operand:
        if (variable := self.variable(type_of_operand(type_, form), value, path, form)) is not None:
            return variable
        try:
            literal = read(type_, self.unescaped(value, path))
            shaped = shape_operand(form, literal)
            if self.use != "filter" and form not in ("plain", "one", "exact") and not (literal and shaped):
                raise InvalidValue("invalid", "Must not be empty: it would match everything.")
            return self.bind(type_of_operand(type_, form), shaped)
        except InvalidValue as error:
            raise InvalidCondition(path, error.code, error.continued) from None

    def unescaped(self, value: Any, path: str) -> Any:
        return value if self.use == "filter" else read_literal(value, path)

    def check_email(self, column: Column, value: Any, path: str) -> None:
        """Refuse a filter for an email with a space: it would find nothing, because a URL turned a plus into it."""
        if self.use == "filter" and column.format == "email" and isinstance(value, str) and " " in value:
            message = 'must be an email, which has no space. In a URL, "+" means a space: write "%2B".'
            raise InvalidCondition(path, "invalid", message)

    def check_list(self, value: Any, path: str) -> None:
        if not isinstance(value, list):
            raise InvalidCondition(path, "wrong_type", "must be a list.")
        if len(value) > MAX_LIST:
            raise InvalidCondition(path, "too_many", f"must have at most {MAX_LIST} values.")

    def bind(self, type_: Type, value: Any) -> Operand:
        encoded = wire(type_, value)
        self.values.append(value)
        if self.use != "filter":
            return Constant(encoded, type_, value)
        self.wires.append(encoded)
        return Slot(len(self.wires) - 1, type_)

    def variable(self, type_: Type, value: Any, path: str, form: Form = "plain") -> Variable | None:
        """The variable that `value` names, typed by what it is compared with; None for a literal."""
        if self.use == "filter" or not isinstance(value, str) or not value.startswith("$") or value.startswith("$$"):
            return None
        return read_variable(self.resolver, self.base, value[1:], type_, form, path, self.use)


def _equals(cell: Path, variable: Variable) -> Condition:
    """Emails are stored in lower case, columns as the application wrote them: both sides are compared in lower case."""
    if variable.name == "user.email" and variable.type == "text":
        return Compare(cell, "ilike", replace(variable, form="exact"))
    return Compare(cell, "eq", variable)


def read_literal(value: Any, path: str) -> Any:
    """A rule's literal, in which `$$` at the beginning of a text stands for `$`, at any depth.

    Raises InvalidCondition for a text that begins with a single `$`: its author meant a variable, which is not
    allowed there.
    """
    if isinstance(value, str) and value.startswith("$"):
        if not value.startswith("$$"):
            message = 'a variable cannot stand inside of a value; write "$$" for a text that begins with "$".'
            raise InvalidCondition(path, "invalid", message)
        return value[1:]
    if isinstance(value, list):
        return [read_literal(item, _join(path, index)) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {key: read_literal(item, _join(path, key)) for key, item in value.items()}
    return value


def read_variable(
    resolver: NameResolver, table: str, name: str, type_: Type, form: Form, path: str, use: Use = "rule"
) -> Variable:
    """The variable `name` (without `$`) as an operand of `type_`. Raises InvalidCondition if there is none such, or if
    it can never have a value of that type. What a claim holds is only known, and checked, when it is bound.
    """
    if name.startswith(OLD) and use in ("check", "record"):
        column = resolver.column(table, name.removeprefix(OLD))
        if column is None:
            raise InvalidCondition(path, "unknown", f"there is no column for ${name}.")
        if form != "plain":
            raise InvalidCondition(path, "invalid", f"${name} cannot be used with this operator.")
        if SQL_TYPES[column.type] != type_:
            raise InvalidCondition(path, "wrong_type", f"${name} is of type {column.type}, which does not fit.")
        return Variable(name, type_, form)
    if use == "record":
        raise InvalidCondition(path, "unknown", "the only variables here are $old.<column>.")
    if name == "now":
        if type_ not in ("timestamptz", "date"):
            raise InvalidCondition(path, "wrong_type", "$now only fits dates and timestamps.")
    elif name in _TEXT_VARIABLES:
        if type_ != "text" and not (type_ == "text[]" and form in ("one", "words")):
            raise InvalidCondition(path, "wrong_type", f"${name} is a text, which does not fit.")
    elif not _CLAIM.fullmatch(name):
        raise InvalidCondition(
            path,
            "unknown",
            "there is no such variable here: $user.id, $user.email, $user.role, $user.claims.<name>, $key.id and $now "
            'are, and $old.<column> in a check; write "$$" for a text that begins with "$".',
        )
    return Variable(name, type_, form)


_NO_CONDITION: Final = "there is no condition of this name that can be used here."


def _without_variables(document: Any, path: str) -> Any:
    """A named condition as a caller would write it: `$$` is one dollar sign. Raises InvalidCondition for a variable."""
    if isinstance(document, str) and document.startswith("$"):
        if not document.startswith("$$"):
            raise InvalidCondition(path, "unknown", _NO_CONDITION)
        return document[1:]
    if isinstance(document, Mapping):
        return {key: _without_variables(value, path) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_without_variables(value, path) for value in document]
    return document


def _holds_ids(column: Column) -> bool:
    return column.is_reference or column.is_user or column is ID


def _is_operators(value: Mapping[str, Any]) -> bool:
    """Whether an object beside a json column is operators rather than a JSON value. `{}` is the value."""
    return bool(value) and all(key.startswith("$") for key in value)


def _join(path: str, part: object) -> str:
    return f"{path}.{part}" if path else str(part)


def _refuse_unknown(path: str, word: str = "", known: Iterable[str] = ()) -> NoReturn:
    """`known` are the names that the asker may see: nothing else is ever proposed."""
    combinator = f"${word.lower()}"
    slip = f'; did you mean "{combinator}"?' if combinator in COMBINATORS else did_you_mean(word, known)
    raise InvalidCondition(path, "unknown", f"there is no such column or relation{slip or '.'}")


def user_column(table: str, name: str, resolver: NameResolver) -> str | None:
    """The readable column with the id of the user `name`: `owner_id` for `owner`."""
    column = resolver.column(table, f"{name}_id")
    return column.name if column is not None and column.is_user else None


def _refuse_user(path: str, table: str, name: str, resolver: NameResolver) -> None:
    if column := user_column(table, name, resolver):
        raise InvalidCondition(path, "unknown", f"{name} is a user: conditions can only use {column}.")


def _unknown_operator(path: str, word: str, known: Iterable[str]) -> InvalidCondition:
    """Names the operator that is most likely meant (other systems spell them `gte`, `_gte`, `starts_with`), or all that
    fit."""
    meant = f"${word.lstrip('$').replace('_', '')}".lower()
    spelled = {one.lower(): one for one in known}
    slip = f'; did you mean "{spelled[meant]}"?' if meant in spelled else f": here are {', '.join(sorted(known))}."
    return InvalidCondition(path, "unknown_operator", f"there is no such operator{slip}")


def _relation_takes(relation: Hop) -> str:
    takes = "is a relation: it takes $some, $none or $every"
    return f"{takes}." if relation.many else f'{takes}, or $is; its id is "{relation.column}".'


def read_rule(document: Mapping[str, Any], table: str, resolver: NameResolver, use: Use = "rule") -> Condition:
    """A rule's `where` (or `check`), in normal form and not yet guarded (`conditions.guarded`). Raises
    InvalidCondition."""
    return _Reader(resolver, table, use).condition(table, document, "", 1)


def read_record(document: Mapping[str, Any], table: str, resolver: NameResolver) -> Condition:
    """A webhook's filter: the columns of one record and `$old.<column>`, without relations. Raises InvalidCondition.

    To be evaluated by `evaluate` with the record as row and the old record beside it. It is guarded: a comparison with
    an old value that is missing (every insert) or null is false, negated or not.
    """
    return guarded(_Reader(resolver, table, "record").condition(table, document, "", 1))


def read_filter(document: Any, table: str, resolver: NameResolver) -> Filter:
    """A caller's filter from parsed JSON. Raises InvalidCondition."""
    reader = _Reader(resolver, table, "filter")
    shape = reader.condition(table, document, "", 1)
    if not reader.wires:
        return Filter(shape) if shape != TRUE else NO_FILTER
    found = Filter(shape, tuple(reader.wires), tuple(reader.values))
    return _compact(found) if reader.is_loose else found


def _compact(found: Filter) -> Filter:
    """The filter without the values of conditions that a TRUE or FALSE made irrelevant: every value must be bound."""
    used = sorted({operand.index for operand in operands(found.shape) if isinstance(operand, Slot)})
    numbers = {old: new for new, old in enumerate(used)}
    return Filter(
        _renumber(found.shape, numbers),
        tuple(found.wire[index] for index in used),
        tuple(found.values[index] for index in used),
    )


def _renumber(condition: Condition, numbers: Mapping[int, int]) -> Condition:
    def moved(operand: Operand) -> Operand:
        return Slot(numbers[operand.index], operand.type) if isinstance(operand, Slot) else operand

    match condition:
        case Compare(path, operator, operand):
            return Compare(path, operator, moved(operand))
        case Search(paths, operand):
            return Search(paths, moved(operand))
        case Not(inner):
            leaf = _renumber(inner, numbers)
            return Not(leaf)  # type: ignore[arg-type]
        case And(conditions):
            return And(tuple(_renumber(part, numbers) for part in conditions))
        case Or(conditions):
            return Or(tuple(_renumber(part, numbers) for part in conditions))
        case Quantified(kind, hop, inner):
            return Quantified(kind, hop, _renumber(inner, numbers))
        case _:
            return condition


def shown(path: str) -> str:
    """A path as an answer may repeat it: shortened, and without characters that could not be sent."""
    return path[:200].encode("unicode_escape").decode()
