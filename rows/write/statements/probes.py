from typing import Any

from rows.query.role_view import RoleView
from rows.query.sql.conditions import CURRENT_ROW, GivenRow, RowSource
from rows.query.sql.expressions import ALWAYS, Parameter, listed
from rows.query.sql.statement import Statement, build_statement, is_row, verdict, verdicts
from rows.schema.model import SQL_TYPES, Table
from rows.write.row_size import updated_row_fits
from rows.write.statements.conditions import (
    cells_of,
    computability_conditions,
    has_no_subscribers,
    matches_etag,
    rule_of,
    visible_references,
)
from rows.write.statements.shapes import InsertShape, OldCell, UpdateShape, WriteShape


def probe(role_view: RoleView, shape: WriteShape) -> Statement:
    """Each condition of a write that was not made: one row of booleans, or none if no changeable row has that id, so
    that nothing about it is computed. They are: If-Match fits (an insert: true); no event is missing; then, except for
    a delete, those of `_after_write`."""
    table = role_view.schema.tables[shape.table]
    needs_no_event = ALWAYS if shape.events else has_no_subscribers(shape)
    if isinstance(shape, InsertShape):
        conditions = [ALWAYS, needs_no_event, *_after_write(role_view, table, shape, None)]
        return build_statement(role_view.alias, "SELECT ", listed(map(verdict, conditions)))
    conditions = [matches_etag(role_view, shape) if shape.matches else ALWAYS, needs_no_event]
    if isinstance(shape, UpdateShape):
        conditions += _after_write(role_view, table, shape, CURRENT_ROW)
    rows = role_view.models[table.name].objects.changeable_by(role_view, shape.action)
    return build_statement(role_view.alias, verdicts(rows.filter(is_row()), conditions))


def probe_afterwards(role_view: RoleView, shape: InsertShape | UpdateShape) -> Statement:
    """The verdicts of `_checks` on the row as a write has left it. Takes its OldCells."""
    table = role_view.schema.tables[shape.table]
    rows = role_view.models[table.name].unruled.using(role_view.alias)
    old = {name: Parameter(OldCell(name), SQL_TYPES[column.type]) for name, column in table.all_columns.items()}
    checks = _checks(role_view, shape, CURRENT_ROW, GivenRow(old))
    return build_statement(role_view.alias, verdicts(rows.filter(is_row()), checks))


def _after_write(
    role_view: RoleView, table: Table, write: InsertShape | UpdateShape, before: RowSource | None
) -> list[Any]:
    """`computability_conditions`; for a large update, whether the row fits; `visible_references`; then `_checks`."""
    cells = cells_of(role_view, write)
    computable = computability_conditions(role_view, write) if isinstance(write, UpdateShape) else []
    small = []
    if isinstance(write, UpdateShape) and write.large:
        small = [updated_row_fits(role_view, table, cells, rule_of(role_view, write).columns)]
    seen = visible_references(role_view, write, cells, before)
    return [*computable, *small, *seen, *_checks(role_view, write, GivenRow(cells, before), before)]


def _checks(
    role_view: RoleView, write: InsertShape | UpdateShape, source: RowSource, before: RowSource | None
) -> list[Any]:
    """One for each clause of the rule's check, and the whole check."""
    rule, translator = rule_of(role_view, write), role_view.rules_with(before)
    checks = [*(clause.condition for clause in rule.check_clauses), rule.check]
    return [translator.condition(check, write.table, source) for check in checks]
