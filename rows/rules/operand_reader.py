from collections.abc import Mapping
from typing import Any, Final

from rows.rules.conditions import Constant, Form, Operand, OtherCell, Path, Slot, Variable
from rows.rules.name_resolver import InvalidCondition, NameResolver, Use
from rows.rules.operators import shape_operand, type_of_operand
from rows.rules.variables import read_literal, read_variable
from rows.schema.column_values import is_possible_id, read_operand
from rows.schema.identifiers import no_column
from rows.schema.model import ID, SQL_TYPES, Column
from rows.schema.types import Type
from rows.schema.values import InvalidValue, read, wire

MAX_LIST: Final = 1_000
_INNER_VALUES: Final = 10
"""What an object or list inside a list counts for: comparing one takes ten times as long."""
_TWO_ROWS: Final = "Columns of two rows cannot be compared: let a function or your server write the value."


class OperandReader:
    """A filter's values become slots, without variables; others bind literals as constants."""

    __slots__ = ("base", "resolver", "table", "use", "values", "wires")

    def __init__(self, resolver: NameResolver, table: str, use: Use) -> None:
        self.resolver = resolver
        self.base = table
        self.table = table
        self.use = use
        self.wires: list[bytes] = []
        self.values: list[Any] = []

    def comparable(self, cell: Path, column: Column, value: Any, path: str) -> Operand:
        type_ = SQL_TYPES[column.type]
        if isinstance(value, Mapping) and value.keys() == {"$column"} and column.type != "json":
            return self.other_cell(cell, type_, value["$column"], path)
        if (variable := self.variable(type_, value, path)) is not None:
            return variable
        if column.type == "text[]":
            self.check_list(value, path)
        return self.bind(type_, self.literal(column, value, path))

    def other_cell(self, cell: Path, type_: Type, name: Any, path: str) -> OtherCell:
        """The operand `{"$column": name}`, of the table at the end of `cell`'s path."""
        table = cell.hops[-1].table if cell.hops else self.table
        if not isinstance(name, str):
            raise InvalidCondition(path, "wrong_type", "$column must be the name of a column.")
        column = self.resolver.column(table, name)
        if "." in name:
            raise InvalidCondition(path, "unknown", f"there is no such column. {_TWO_ROWS}")
        if column is None:
            raise InvalidCondition(path, "unknown", no_column(name, self.resolver.names(table)))
        if name == cell.column and self.resolver.is_strict:
            message = f'is compared with itself: "$column" names another column of the same row, here of {table}.'
            raise InvalidCondition(path, "invalid", message if table == self.base else f"{message} {_TWO_ROWS}")
        if SQL_TYPES[column.type] != type_:
            raise InvalidCondition(path, "wrong_type", f"{name} is of type {column.type}, which does not fit.")
        return OtherCell(name, type_)

    def literal(self, column: Column, value: Any, path: str) -> Any:
        holds_ids = column.is_reference or column.is_user or column is ID
        if self.use == "filter" and holds_ids and isinstance(value, str) and value.startswith("$"):
            # No id begins with `$`: the caller means a rule's variable and would take an empty list for a correct
            # answer.
            raise InvalidCondition(
                path,
                "invalid",
                'is not an id: variables such as "$user.id" can only be used in rules. '
                "Send the value itself in a filter.",
            )
        self.check_email(column, value, path)
        try:
            literal = read_operand(column, self.unescaped(value, path))
        except InvalidValue as error:
            raise InvalidCondition(path, error.code, error.continued) from None
        if self.resolver.is_strict and not is_possible_id(column, literal):
            message = 'is not the id of a user (usr_…). The caller\'s id is "$user.id".'
            if column.is_reference:
                row = f"the id of a row of {column.references}"
                message = f"is not {row}: ids are letters, digits, hyphens and underscores."
            raise InvalidCondition(path, "invalid", message)
        return literal

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
        """Refuse an email with a space: a URL turned a plus into it."""
        if self.use == "filter" and column.format == "email" and isinstance(value, str) and " " in value:
            message = 'must be an email, which has no space. In a URL, "+" means a space: write "%2B".'
            raise InvalidCondition(path, "invalid", message)

    def check_list(self, value: Any, path: str) -> None:
        if not isinstance(value, list):
            raise InvalidCondition(path, "wrong_type", "must be a list.")
        if len(value) > MAX_LIST:
            raise InvalidCondition(path, "too_many", f"must have at most {MAX_LIST} values.")

    def check_contained(self, value: Any, path: str) -> None:
        """Of filters: PostgreSQL compares each of these values with each of the cell's list, without looking at the
        timeout."""
        if self.use != "filter":
            return
        waiting, count = [value], 0
        while waiting:
            part = waiting.pop()
            if isinstance(part, Mapping):
                waiting += part.values()
            elif isinstance(part, list):
                waiting += part
                count += sum(_INNER_VALUES if isinstance(each, Mapping | list) else 1 for each in part)
        if count > MAX_LIST:
            message = f"the lists must have at most {MAX_LIST} values, of which each object or list counts as ten."
            raise InvalidCondition(path, "too_many", message)

    def bind(self, type_: Type, value: Any) -> Operand:
        encoded = wire(type_, value)
        self.values.append(value)
        if self.use != "filter":
            return Constant(encoded, type_, value)
        self.wires.append(encoded)
        return Slot(len(self.wires) - 1, type_)

    def variable(self, type_: Type, value: Any, path: str, form: Form = "plain") -> Variable | None:
        if self.use == "filter" or not isinstance(value, str) or not value.startswith("$") or value.startswith("$$"):
            return None
        return read_variable(self.resolver, self.base, value[1:], type_, form, path, self.use)
