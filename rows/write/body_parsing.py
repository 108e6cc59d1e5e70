"""Parses the bodies of writes: an object of columns and values becomes wire text by column, or the list of all invalid
fields. Errors only mention columns that the caller may know."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from platform_site.http.errors import FieldError, ValidationFailed
from platform_site.http.fields import WHOLE_BODY
from rows.schema.column_values import encode_cell
from rows.schema.identifiers import did_you_mean
from rows.schema.model import ID, MAX_ERRORS, Table
from rows.schema.values import InvalidValue
from rows.write import update_operators
from rows.write.update_operators import Change

Cells = Mapping[str, bytes | None]


def read_insert(
    table: Table, body: Any, *, writable: Collection[str], readable: Collection[str]
) -> tuple[dict[str, bytes | None], list[FieldError]]:
    """The cells that `body` sets, and at most MAX_ERRORS errors. `writable` is without columns that rules `set`. An
    operator computes the cell from its default. Raises ValidationFailed for a body that is no object."""
    cells, changes, errors = read_update(table, body, writable=writable, readable=readable, takes_id=True)
    for name, change in changes.items():
        try:
            cells[name] = change.initial_cell()
        except InvalidValue as error:
            errors.append(error.of(name))
    given = {*cells, *(error.field for error in errors)}
    for column in table.columns.values() if len(errors) < MAX_ERRORS else ():  # else it was not read to its end
        if column.name not in given and not column.null and column.default is None and column.name in writable:
            errors.append(FieldError(column.name, "required", "Required."))
    return cells, errors


def read_update(
    table: Table, body: Any, *, writable: Collection[str], readable: Collection[str], takes_id: bool = False
) -> tuple[dict[str, bytes | None], dict[str, Change], list[FieldError]]:
    """As `read_insert`. The text of a computed cell is the operand. An update never accepts `id`."""
    if not isinstance(body, Mapping):
        raise ValidationFailed.of(WHOLE_BODY, "wrong_type", "Must be an object of columns and values.")
    cells: dict[str, bytes | None] = {}
    changes: dict[str, Change] = {}
    errors: list[FieldError] = []
    for name, value in body.items():
        if len(errors) >= MAX_ERRORS:
            break
        column = table.all_columns.get(name)
        try:
            if column is None or name not in writable or (column is ID and not takes_id):
                raise _not_writable(table, name, writable, readable)
            if isinstance(value, dict) and (change := update_operators.read(column, value)) is not None:
                if name not in readable:
                    raise update_operators.unreadable()
                changes[name] = change
                cells[name] = change.wire
            else:
                cells[name] = encode_cell(table, column, value)
        except InvalidValue as error:
            errors.append(error.of(str(name)[:100].encode("unicode_escape").decode()))
    return cells, changes, errors


def _not_writable(table: Table, name: str, writable: Iterable[str], readable: Collection[str]) -> InvalidValue:
    """A visible column is read-only; a hidden one does not exist. Only writable columns are suggested."""
    if name == ID.name or name in readable:
        by = "the table's rules do not let you" if name in table.columns else "the platform sets it"
        return InvalidValue("read_only", f"Cannot be set: {by}.")
    suggestion = did_you_mean(name, writable, compared=0) or "."
    return InvalidValue("unknown", f"There is no such column{suggestion}")
