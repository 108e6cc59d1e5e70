from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from django.db.models import Exists, F

from rows.query.role_view import RoleView
from rows.query.sql.conditions import CURRENT_ROW, RowSource
from rows.query.sql.expressions import ALWAYS, Parameter, Sql, boolean, joined
from rows.query.sql.row_json import etag
from rows.query.sql.statement import ROW_ID, Cell
from rows.query.tables.managers import RowQuerySet
from rows.rules.access import WriteRule
from rows.rules.conditions import OLD, Variable, hops_of, operands
from rows.schema.model import SQL_TYPES, Column
from rows.write import update_operators
from rows.write.row_size import updated_row_fits
from rows.write.statements.changes import has_subscribers
from rows.write.statements.shapes import ETAGS, DeleteShape, Ids, InsertShape, UpdateShape, WriteShape

STAMP: Final = Sql("statement_timestamp()")
TODAY: Final = Sql("(statement_timestamp() AT TIME ZONE 'UTC')::date")


def cells_of(role_view: RoleView, shape: InsertShape | UpdateShape) -> dict[str, Any]:
    table = role_view.schema.tables[shape.table]
    types = {name: SQL_TYPES[column.type] for name, column in table.columns.items()}
    cells: dict[str, Any] = {"updated_at": STAMP}
    if isinstance(shape, InsertShape):
        cells |= {ROW_ID: Parameter(ROW_ID, "text"), "created_at": STAMP}
        cells |= {name: Parameter(Cell(name), type_) for name, type_ in types.items()}
        cells |= {name: TODAY if types[name] == "date" else STAMP for name in shape.stamped}
    else:
        cells |= {name: Parameter(Cell(name), types[name]) for name in shape.columns}
        for name, operator in shape.computed:
            seen = role_view.reading.cell(table.name, name, CURRENT_ROW)
            cells[name] = update_operators.cell(table.columns[name], operator, seen)
    for name, operand in rule_of(role_view, shape).set.items():
        cells[name] = Sql(f"NULL::{types[name]}") if operand is None else role_view.operand(operand)
    return cells


def rule_of(role_view: RoleView, shape: InsertShape | UpdateShape) -> WriteRule:
    rule: WriteRule | None = getattr(role_view.access(shape.table), shape.action)
    if rule is None:
        raise LookupError("there is no rule for this write")
    return rule


def references_of(role_view: RoleView, shape: InsertShape | UpdateShape) -> list[Column]:
    """The references that the caller sends: each must lead to a row that it can see."""
    table = role_view.schema.tables[shape.table]
    if isinstance(shape, UpdateShape):
        return [table.columns[name] for name in shape.columns if table.columns[name].is_reference]
    writable = rule_of(role_view, shape).columns
    return [column for column in table.columns.values() if column.is_reference and column.name in writable]


def conditions_of_row(
    role_view: RoleView, shape: InsertShape | UpdateShape, cells: Mapping[str, Any], before: RowSource | None
) -> list[Any]:
    """Of the row after the write, except for the rule's check: two for each computed column, that the caller may read
    the old cell and that the result fits; if the shape is large, that the row fits; for each of `references_of`, that
    it is null, leads to a visible row, or stays what the caller sees it to be."""
    table = role_view.schema.tables[shape.table]
    found: list[Any] = []
    if isinstance(shape, UpdateShape):
        for name, operator in shape.computed:
            readable = role_view.readable(table.name, name, CURRENT_ROW)
            seen = role_view.reading.cell(table.name, name, CURRENT_ROW)
            fits = update_operators.fits(table.columns[name], operator, seen)
            found += [ALWAYS if readable is None else readable, fits]
        if shape.large:
            found.append(updated_row_fits(role_view, table, cells, rule_of(role_view, shape).columns))
    for column in references_of(role_view, shape):
        cell = cells[column.name]
        targets = role_view.reading.far(column.references or "").filter(boolean("(", F("id"), " = ", cell, ")"))
        unchanged: list[Any] = []
        if before is not None:
            unchanged = [" OR ", role_view.reading.cell(shape.table, column.name, before), " = ", cell]
        found.append(boolean("(", cell, " IS NULL OR ", Exists(targets), *unchanged, ")"))
    return found


def needs_second_statement(role_view: RoleView, shape: InsertShape | UpdateShape) -> bool:
    """If a rule for the written row also reads other rows of its table: a statement sees the table as it was before the
    write."""
    key = "uses own table", shape.table, shape.action
    known = role_view.cache.get(key)
    if known is None:
        read = role_view.access(shape.table).read
        conditions = [rule_of(role_view, shape).check, *(read.conditions if read else ())]
        known = any(hop.table == shape.table for condition in conditions for hop in hops_of(condition))
        role_view.cache[key] = known
    return bool(known)


def depends_on_insert_order(role_view: RoleView, tables: Iterable[str]) -> bool:
    """Whether a rule may read rows of these tables that the new row does not refer to."""
    inserted = frozenset(tables)
    known = role_view.cache.get(("depends on insert order", inserted))
    if known is None:
        conditions = [access.insert.check for name in inserted if (access := role_view.access(name)).insert is not None]
        for name in role_view.schema.tables:
            if read := role_view.access(name).read:
                conditions += read.conditions
        known = any(hop.many and hop.table in inserted for condition in conditions for hop in hops_of(condition))
        role_view.cache["depends on insert order", inserted] = known
    return bool(known)


def old_columns(role_view: RoleView, shape: UpdateShape) -> tuple[str, ...]:
    """Those whose previous cells the rule's checks read (`$old.…`)."""
    rule = rule_of(role_view, shape)
    checks = [rule.check, *(clause.condition for clause in rule.check_clauses)]
    found = {operand.name for check in checks for operand in operands(check) if isinstance(operand, Variable)}
    return tuple(sorted(name.removeprefix(OLD) for name in found if name.startswith(OLD)))


def is_among(column: str, ids: Ids) -> Sql:
    return boolean("(", F(column), " = ANY (", Parameter(ids, "text[]"), "))")


def with_preconditions(role_view: RoleView, rows: RowQuerySet, write: UpdateShape | DeleteShape) -> RowQuerySet:
    if write.matches:
        rows = rows.filter(only_if_changeable(role_view, write, [matches_etag(role_view, write)]))
    return rows if write.events else rows.filter(has_no_subscribers(write))


def has_no_subscribers(write: WriteShape) -> Sql:
    return boolean("(NOT ", has_subscribers(write.table, write.action), ")")


def only_if_changeable(role_view: RoleView, write: UpdateShape | DeleteShape, conditions: Sequence[Any]) -> Any:
    """PostgreSQL would otherwise evaluate first what it considers cheap, and the duration of a condition would reveal
    the length of a hidden row's cells."""
    condition, may = joined(" AND ", conditions, ALWAYS), role_view.may_change(write.table, write.action)
    return condition if may == ALWAYS else boolean("(CASE WHEN ", may, " THEN ", condition, " END)")


def matches_etag(role_view: RoleView, write: UpdateShape | DeleteShape) -> Sql:
    table = role_view.schema.tables[write.table]
    return boolean("(", etag(role_view, table, CURRENT_ROW), " = ANY (", Parameter(ETAGS, "text[]"), "))")
