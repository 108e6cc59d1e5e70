from dataclasses import dataclass
from typing import Any

from platform_site.postgres.libpq import Row
from rows.query.role_view import RoleView
from rows.query.sql.conditions import CURRENT_ROW, GivenRow, RowSource
from rows.query.sql.expressions import ALWAYS, Parameter, listed
from rows.query.sql.statement import Statement, build_statement, is_row, verdict, verdicts
from rows.schema.model import SQL_TYPES, Column
from rows.write.statements.conditions import (
    cells_of,
    conditions_of_row,
    has_no_subscribers,
    matches_etag,
    references_of,
    rule_of,
)
from rows.write.statements.shapes import DeleteShape, InsertShape, OldCell, UpdateShape, WriteShape


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Of each condition of a write, in this order. Those of a delete end with `needs_no_event`."""

    matches_etag: bool
    needs_no_event: bool
    computable: list[tuple[bool, bool]]
    """For each computed column: the caller may read the old cell, and the result fits."""
    row_fits: bool
    unseen_references: list[Column]
    check: list[bool]
    """For each clause of the rule's check, then for the whole check."""


def probe(role_view: RoleView, shape: WriteShape) -> Statement:
    """Evaluates each condition of a write that was not made: one row for `verdicts_of`, or none if no changeable row
    has that id, so that nothing about it is computed."""
    table = role_view.schema.tables[shape.table]
    needs_no_event = ALWAYS if shape.events else has_no_subscribers(shape)
    if isinstance(shape, InsertShape):
        conditions = [ALWAYS, needs_no_event, *_after_write(role_view, shape, None)]
        return build_statement(role_view.alias, "SELECT ", listed(map(verdict, conditions)))
    conditions = [matches_etag(role_view, shape) if shape.matches else ALWAYS, needs_no_event]
    if isinstance(shape, UpdateShape):
        conditions += _after_write(role_view, shape, CURRENT_ROW)
    rows = role_view.models[table.name].objects.changeable_by(role_view, shape.action)
    return build_statement(role_view.alias, verdicts(rows.filter(is_row()), conditions))


def verdicts_of(role_view: RoleView, shape: WriteShape, row: Row) -> Verdicts:
    found = iter([cell == b"t" for cell in row])
    computed = shape.computed if isinstance(shape, UpdateShape) else ()
    is_large = isinstance(shape, UpdateShape) and shape.large
    references = [] if isinstance(shape, DeleteShape) else references_of(role_view, shape)
    return Verdicts(
        matches_etag=next(found),
        needs_no_event=next(found),
        computable=[(next(found), next(found)) for _ in computed],
        row_fits=next(found) if is_large else True,
        unseen_references=[column for column in references if not next(found)],
        check=list(found),
    )


def probe_afterwards(role_view: RoleView, shape: InsertShape | UpdateShape) -> Statement:
    """The verdicts of `_checks` on the row as a write has left it. Takes its OldCells."""
    table = role_view.schema.tables[shape.table]
    rows = role_view.models[table.name].unruled.using(role_view.alias)
    old = {name: Parameter(OldCell(name), SQL_TYPES[column.type]) for name, column in table.all_columns.items()}
    checks = _checks(role_view, shape, CURRENT_ROW, GivenRow(old))
    return build_statement(role_view.alias, verdicts(rows.filter(is_row()), checks))


def _after_write(role_view: RoleView, shape: InsertShape | UpdateShape, before: RowSource | None) -> list[Any]:
    cells = cells_of(role_view, shape)
    conditions = conditions_of_row(role_view, shape, cells, before)
    return [*conditions, *_checks(role_view, shape, GivenRow(cells, before), before)]


def _checks(
    role_view: RoleView, write: InsertShape | UpdateShape, source: RowSource, before: RowSource | None
) -> list[Any]:
    """One for each clause of the rule's check, and the whole check."""
    rule, translator = rule_of(role_view, write), role_view.rules_with(before)
    checks = [*(clause.condition for clause in rule.check_clauses), rule.check]
    return [translator.condition(check, write.table, source) for check in checks]
