"""Finds the error of a write that was refused, or would be. A statement that wrote nothing gives no reason: a probe
(`rows.write.statements.probes`) evaluates each of its conditions separately, and its verdicts become 404, 412 or 422. A
violated constraint is recognized by its name. Errors only mention what this principal may know."""

from collections.abc import Iterable

from django.db import DatabaseError, IntegrityError

from accounts.directory import user_lookup
from platform_site.http.errors import (
    ApiError,
    Conflict,
    FieldError,
    NotFound,
    PreconditionFailed,
    Unavailable,
    ValidationFailed,
)
from platform_site.http.fields import WHOLE_BODY
from platform_site.postgres import sqlstates
from rows.query.context import QueryContext
from rows.query.service import RowResult
from rows.query.sql.row_json import MAX_ANSWER_BYTES
from rows.query.sql.statement import ROW_ID, Cell
from rows.query.tables import table_models
from rows.query.tables.table_checks import constraint_name
from rows.rules import checks
from rows.rules.access import WriteRule
from rows.rules.conditions import Condition, Quantified, parts, paths_of
from rows.schema import column_values, identifiers
from rows.schema.column_values import MAX_ROW_BYTES
from rows.schema.model import Column, Table
from rows.write import body_parsing, row_size, update_operators
from rows.write.pending_write import Named, PendingWrite
from rows.write.row_size import Shares
from rows.write.statements import conditions, probes
from rows.write.statements.probes import Verdicts
from rows.write.statements.shapes import DeleteShape, InsertShape, UpdateShape, WriteShape
from rows.write.update_operators import GROWING


class WriteRefused(NotFound):
    """The row does not exist, is hidden from the caller, or may be seen but not changed. The response is the same for
    all three (contract 4.8)."""

    message = "Not found, or you have no permission to change it."


def run_probe(context: QueryContext, pending: PendingWrite[WriteShape]) -> Verdicts:
    """Raises WriteRefused and PreconditionFailed."""
    rows = context.read(context.statement(probes.probe, pending.shape), pending.named)
    if not rows:
        raise WriteRefused
    verdicts = probes.verdicts_of(context.compiled.role_view(context.role_key), pending.shape, rows[0])
    if not verdicts.matches_etag:
        raise PreconditionFailed
    return verdicts


def raise_reason(context: QueryContext, pending: PendingWrite[WriteShape]) -> None:
    """Raise why the write failed, unless nothing prevents it now."""
    verdicts = run_probe(context, pending)
    if not verdicts.needs_no_event:  # a subscription began meanwhile: try again, with an event
        context.compiled.learn_interest(pending.table.name, pending.shape.action, True)
        return
    if isinstance(pending.shape, DeleteShape):
        return
    role_view = context.compiled.role_view(context.role_key)
    if isinstance(pending.shape, UpdateShape):
        if errors := _not_computable(pending.shape, verdicts):
            raise ValidationFailed(fields=errors)
        if not verdicts.row_fits:
            grown = (name for name, operator in pending.shape.computed if operator in GROWING)
            raise too_large(row_size.shares(role_view, pending.table, _rule(pending).columns), grown)
    if unseen := _unseen(verdicts.unseen_references):
        raise ValidationFailed(fields=unseen)
    if not conditions.needs_second_statement(role_view, pending.shape):  # else its checks come after the write
        _check(context, pending, verdicts.check)


def _not_computable(shape: UpdateShape, verdicts: Verdicts) -> list[FieldError]:
    found: list[FieldError] = []
    for (column, operator), (is_readable, has_room) in zip(shape.computed, verdicts.computable, strict=True):
        if not (is_readable and has_room):
            problem = update_operators.too_large(operator) if is_readable else update_operators.unreadable()
            found.append(problem.of(column))
    return found


def _unseen(references: Iterable[Column]) -> list[FieldError]:
    return [column_values.missing_row().of(column.name) for column in references]


def check_written(context: QueryContext, pending: PendingWrite[InsertShape | UpdateShape], old: Named) -> None:
    """Evaluates the checks on the row as the write left it."""
    statement = context.statement(probes.probe_afterwards, pending.shape)
    [row] = context.read(statement, pending.named | old)
    _check(context, pending, (cell == b"t" for cell in row))


def _check(context: QueryContext, pending: PendingWrite[WriteShape], verdicts: Iterable[bool]) -> None:
    """`verdicts`: of the check's clauses, then of the whole check. Raises 422 naming the columns that this principal
    may know, 404 if there are none."""
    *clauses, passed = verdicts
    if passed:
        return
    rule = _rule(pending)
    failed = [clause for clause, held in zip(rule.check_clauses, clauses, strict=True) if not held]
    known = {*context.resolver.columns(pending.table.name), *rule.columns}
    named = dict.fromkeys(column for clause in failed for column in _columns_of(clause.condition) if column in known)
    if not named:
        raise WriteRefused
    message = "The rules do not allow this value."
    raise ValidationFailed(fields=[FieldError(column, "not_allowed", message) for column in named])


def _rule(pending: PendingWrite[WriteShape]) -> WriteRule:
    rule: WriteRule | None = getattr(pending.access, pending.shape.action)
    if rule is None:
        raise WriteRefused
    return rule


def _columns_of(condition: Condition) -> Iterable[str]:
    """The columns of the row itself: of a path and of a to-one relation, the column where it starts. Columns of other
    rows may have the same names."""
    for part in parts(condition):
        if isinstance(part, Quantified) and not part.hop.many:
            yield part.hop.column
        for path in paths_of(part):
            yield path.hops[0].column if path.hops else path.column


def unseen_references(context: QueryContext, pending: PendingWrite[InsertShape | UpdateShape]) -> list[FieldError]:
    """Further errors of a write that fails anyway. Of a row that does not exist for this principal, it learns none."""
    references = conditions.references_of(context.compiled.role_view(context.role_key), pending.shape)
    if not any(pending.named.get(Cell(column.name)) for column in references):
        return []
    try:
        return _unseen(run_probe(context, pending.with_event(context)).unseen_references)
    except WriteRefused:
        return []


def error_of_constraint(
    context: QueryContext, pending: PendingWrite[WriteShape], error: DatabaseError
) -> ApiError | None:
    """None for other errors than of a constraint or index. Its name shows the columns; PostgreSQL's text, which has
    values, is not sent."""
    table = pending.table
    name = sqlstates.constraint(error) or ""
    state = sqlstates.sqlstate(error)
    known = {*context.resolver.columns(table.name), *(_rule(pending).columns)}
    if state == "23505":
        return _taken(pending, name, known)
    if state == "23514":
        return _violated(context, table, name, known)
    if state == "23503":
        for column in table.columns.values():
            if name == table_models.foreign_key_name(table.name, column.name) and column.name in known:
                return ValidationFailed(fields=_unseen([column]))
    if state == sqlstates.TOO_LONG_FOR_AN_INDEX and (long := table_models.too_long_together(table, name)):
        message = "Together, the values of these columns are too long for an index (about 2,700 bytes)."
        if known.issuperset(long):
            return ValidationFailed(fields=[FieldError(column, "too_long", message) for column in long])
        return ValidationFailed.of(WHOLE_BODY, "too_long", "The values are too long for an index.")
    return sqlstates.error_for(error) if isinstance(error, IntegrityError) else None


def _violated(context: QueryContext, table: Table, name: str, known: set[str]) -> ApiError:
    """A check of the table, or of a column whose value the rules set or an operator computed."""
    for check in table.checks:
        if name == constraint_name(table.name, check):
            condition = checks.read(table, check, context.compiled.rules.author)
            named = sorted(checks.columns_of(condition) & known)
            message = f'The check "{check}" of {table.name} is not met.'
            if named:
                return ValidationFailed(fields=[FieldError(column, "check_failed", message) for column in named])
            return ValidationFailed.of(WHOLE_BODY, "check_failed", "The row does not meet a check of its table.")
    for column in table.columns.values():
        if name == table_models.check_name(table.name, column.name) and column.name in known:
            return ValidationFailed(fields=[column_values.mismatch(column).of(column.name)])
    return ValidationFailed.of(WHOLE_BODY, "invalid", "A value that the rules set does not fit its column.")


def _taken(pending: PendingWrite[WriteShape], name: str, known: set[str]) -> ApiError:
    """A unique also sees rows that the principal cannot: it is only named to one that may read all of its columns."""
    table = pending.table
    if name.startswith(identifiers.prefix("nu")):
        # Of a running schema change that it may still have to abandon (`rows.migrate.concurrent_unique_indexes`).
        return Unavailable("The schema is changing. Try again shortly.")
    unique = next((unique for unique in table.unique if name == table_models.unique_name(table.name, unique)), None)
    if unique is None:
        row_id = (pending.named[ROW_ID] or b"").decode()
        return Conflict(f'A row with the id "{row_id}" already exists.')
    if not known.issuperset(unique):
        return ValidationFailed.of(WHOLE_BODY, "taken", "Another row already has these values.")
    message = "Another row already has this value." if len(unique) == 1 else "Another row already has these values."
    return ValidationFailed(fields=[FieldError(column, "taken", message) for column in unique])


def unknown_users(context: QueryContext, table: Table, cells: body_parsing.Cells) -> list[FieldError]:
    """Errors for user columns that name no user of the environment. One query, unless they only name the caller."""
    own = context.principal.user_id if context.principal.kind == "user" else None
    named = {column: cell for column in table.user_columns if (cell := cells.get(column)) is not None}
    others = {user for user in named.values() if user.decode() != own}
    if not others:
        return []
    unknown = others - user_lookup.find_users(context.environment.pool_id, others, ("id",)).keys()
    return [column_values.missing_user().of(column) for column, user in named.items() if user in unknown]


def too_large(shared: Shares | None, grown: Iterable[str] = ()) -> ValidationFailed:
    """`grown`: columns that an operator makes longer."""
    message = f"The row would be larger than {MAX_ROW_BYTES >> 20} MB."
    if shared is not None:
        message = (
            f"The columns that you may read would be larger than {shared.own >> 20} MB, or than the space "
            "that the other columns leave if these take more than half of the row."
        )
        if shared.unread:
            message += f" A column that you may write but not read can hold {shared.most_unread >> 10} KB."
    return ValidationFailed(fields=[FieldError(name, "too_large", message) for name in (*grown,) or (WHOLE_BODY,)])


def check_answer_size(rows: Iterable[RowResult]) -> None:
    """To be called in the transaction that wrote the rows, and after each, so that not more is held."""
    if sum(len(row.body) for row in rows) > MAX_ANSWER_BYTES:
        message = f"The response would be larger than {MAX_ANSWER_BYTES >> 20} MB. Send fewer rows at once."
        raise ValidationFailed.of(WHOLE_BODY, "too_large", message)
