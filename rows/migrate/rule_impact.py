"""How many rows a rule change would make visible or hidden, and to whom. Evaluates current and proposed rules over the
same rows in one statement per table and subject, bounded by SAMPLES, a statement timeout and a deadline."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final

from django.db import DatabaseError

from accounts.models import User
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import sqlstates, transaction_settings
from platform_site.postgres.prepared import run
from rows.migrate import service as schema_service
from rows.migrate import versions as schema_versions
from rows.migrate.computation_slots import in_slot
from rows.migrate.planning import planner
from rows.query import schema_cache
from rows.query.role_view import RoleView
from rows.query.schema_cache import CompiledSchema
from rows.query.sql.conditions import TooLarge, compile_budget
from rows.query.sql.expressions import Parameter
from rows.query.sql.statement import LIMIT, Statement, build_statement, verdicts
from rows.rules import named_conditions
from rows.rules.conditions import TRUE, Condition
from rows.rules.principal import ANONYMOUS, MEMBER, PRINCIPALS, SERVER, USER, Principal, RoleKey
from rows.schema.model import InvalidDocument, Schema, Table

SAMPLES: Final = (50_000, 2_000)
"""Examined rows; the smaller number if the larger takes too long."""
STATEMENT_MS: Final = 1_000
TOTAL_SECONDS: Final = 6.0
USERS_PER_ROLE: Final = 2
_MAX_USERS_CHECKED: Final = 200
"""The newest users of the pool, among which users of each role are found."""


@dataclass(frozen=True, slots=True)
class VisibleRows:
    """Counts of rows; with `is_sample` each means "at least"."""

    before: int
    after: int
    appearing: int
    vanishing: int
    is_sample: bool


@dataclass(frozen=True, slots=True)
class Impact:
    """The changes in one table for one subject. `seen` is None if not evaluated, for the reason `why_not`. Columns
    appear or vanish in all rows, or in some that stay visible. Without a table, columns are fields of users."""

    table: str | None
    label: str
    seen: VisibleRows | None
    why_not: str | None = None
    columns_appearing: tuple[str, ...] = ()
    columns_vanishing: tuple[str, ...] = ()

    @property
    def is_sample(self) -> bool:
        return self.seen is not None and self.seen.is_sample


@in_slot
def of_change(environment: EnvironmentRef, raw: Any, *, name_users: bool = True) -> list[Impact]:
    """`raw` is valid. For each table with changed rules, for each role that these rules name, and with `name_users` for
    some of the role's users. Also changes of the visible fields of users."""
    state = schema_versions.current(environment)
    if state.record is None:
        return []
    current, proposed = state.schema, schema_service.read(raw)
    of_users = [
        Impact(None, f"role {role}", None, None, more, less)
        for role, more, less in planner.user_field_changes(current.users, proposed.users)
    ]
    changed = _tables_with_other_rules(current, proposed)
    if not changed:
        return of_users
    under_new_rules, unknown = _apply_rules_to_current(proposed, current, changed)
    before = schema_cache.current(environment)
    after = CompiledSchema(environment.environment_id, environment.cluster, state.version, under_new_rules, set())
    statement_of = cache(partial(_statement, before, after))  # users of a role share a statement
    impacts = [Impact(table, "", None, why) for table, why in unknown.items()]
    deadline = time.monotonic() + TOTAL_SECONDS
    newest = User.objects.in_pool(environment.pool_id).order_by("-id")[:_MAX_USERS_CHECKED] if name_users else ()
    for table in changed:
        if table in unknown:
            continue
        roles = current.tables[table].rules.keys() | proposed.tables[table].rules.keys()
        for label, principal in _impact_subjects(roles, newest):
            impacts.append(_impact(before, after, table, label, principal, deadline, statement_of))
    return impacts + of_users


def _tables_with_other_rules(current: Schema, proposed: Schema) -> list[str]:
    changed = []
    for name, table in current.tables.items():
        becomes = proposed.tables.get(name)
        if becomes is None or becomes.renamed_from is not None:
            continue
        if table.rules != becomes.rules or _conditions(current, table) != _conditions(proposed, becomes):
            changed.append(name)
    return changed


def _conditions(schema: Schema, table: Table) -> dict[named_conditions.Name, Any]:
    rules = [
        (spec.where, spec.check) for actions in table.rules.values() for specs in actions.values() for spec in specs
    ]
    return {name: schema.tables[name[0]].conditions[name[1]] for name in named_conditions.uses(schema, table, rules)}


def _apply_rules_to_current(
    proposed: Schema, current: Schema, changed: Iterable[str]
) -> tuple[Schema, dict[str, str]]:  # fmt: skip
    """The current tables under the proposed rules, and those whose proposed rules do not fit them."""
    tables = dict(current.tables)
    for name in tables.keys() & proposed.tables.keys():
        tables[name] = replace(tables[name], conditions=proposed.tables[name].conditions)
    for name in changed:
        tables[name] = replace(tables[name], rules=proposed.tables[name].rules)
    unknown: dict[str, str] = {}
    while True:
        try:
            return schema_service.with_valid_rules(replace(current, tables=tables)), unknown
        except InvalidDocument as error:
            # One pass reports at most MAX_ERRORS errors: other tables may follow in the next pass.
            named_in_errors = {each.field.split(".")[1] for each in error.errors if "." in each.field}
            wrong = named_in_errors.intersection(tables).difference(unknown)
            if not wrong:
                raise
            for name in wrong:
                unknown[name] = "These rules use what the change creates: their effect cannot be counted before it."
                tables[name] = current.tables[name]


def _impact_subjects(roles: Iterable[str], users: Iterable[User]) -> Iterator[tuple[str, Principal]]:
    named = sorted(roles)
    for role, principal in PRINCIPALS.items():
        if role in named:
            yield (f"role {role}, with a publishable key" if role == ANONYMOUS else f"role {role}", principal)
    for role in named:
        if role in PRINCIPALS:
            continue
        yield (f"role {role}, whoever it is", Principal("user", role=None if role == USER else role))
        others = set(named) - {USER, MEMBER, SERVER}
        of_role = [each for each in users if (each.role not in others if role == USER else each.role == role)]
        for user in of_role[:USERS_PER_ROLE]:
            yield (f"{user.email} (role {role})", Principal.of_user(user))


def _impact(
    before: CompiledSchema,
    after: CompiledSchema,
    table: str,
    label: str,
    principal: Principal,
    deadline: float,
    statement_of: Callable[..., tuple[Statement, list[list[str]]]],
) -> Impact:
    role_before, role_after = before.rules.role_key(principal), after.rules.role_key(principal)
    reads = before.rules.access(table, role_before).read, after.rules.access(table, role_after).read
    old, new = (read.columns if read else () for read in reads)
    appearing, vanishing = [name for name in new if name not in old], [name for name in old if name not in new]
    seen: VisibleRows | None = None
    why_not = "Not counted: it takes too long."
    try:
        for sample in SAMPLES:
            if time.monotonic() > deadline:
                why_not = "Not counted: no time was left for it."
                break
            statement, cells = statement_of(table, role_before, role_after)
            counts = _counts(before.alias, statement, principal, sample)
            if counts is not None:
                was, becomes, more, fewer, looked_at, *of_cells = counts
                seen = VisibleRows(was, becomes, more, fewer, is_sample=looked_at > sample)
                for columns, shown, hidden in zip(cells, of_cells[::2], of_cells[1::2], strict=True):
                    appearing += columns if shown else []
                    vanishing += columns if hidden else []
                break
    except TooLarge:
        why_not = "Not counted: the rules have too many conditions."
    return Impact(table, label, seen, None if seen else why_not, tuple(appearing), tuple(vanishing))


def _counts(using: str, statement: Statement, principal: Principal, sample: int) -> list[int] | None:
    """The counts of `_statement` over the newest `sample` rows; None if it timed out."""
    try:
        with transaction_settings.limited(using, STATEMENT_MS):
            [row] = run(using, statement.sql, statement.bind({LIMIT: b"%d" % (sample + 1)}, (), principal))
    except DatabaseError as error:
        if sqlstates.sqlstate(error) != sqlstates.CANCELLED:
            raise
        return None
    return [int(cell or 0) for cell in row]


def _statement(
    before: CompiledSchema, after: CompiledSchema, table: str, role_before: RoleKey, role_after: RoleKey
) -> tuple[Statement, list[list[str]]]:
    """Counts of rows, and of the rows visible before and after in which the cells of each group of columns appear or
    vanish. Raises TooLarge."""
    rows = before.models[table].unruled.using(before.alias).order_by("-id")
    views = before.role_view(role_before), after.role_view(role_after)
    cells = _cells_with_other_rules(*views, table)
    counts, names = "", "b, a"
    for index in range(len(cells)):
        names += f", b{index}, a{index}"
        for some, other in (("a", "b"), ("b", "a")):
            counts += f", count(*) FILTER (WHERE a AND b AND {some}{index} AND NOT {other}{index})"
    with compile_budget():
        conditions = [view.may_read(table) for view in views]
        for masks in cells:
            conditions += [view.rules.condition(mask, table) for view, mask in zip(views, masks, strict=True)]
        statement = build_statement(
            before.alias,
            "SELECT count(*) FILTER (WHERE b), count(*) FILTER (WHERE a), count(*) FILTER (WHERE a AND NOT b),"
            " count(*) FILTER (WHERE b AND NOT a), count(*)",
            counts,
            " FROM (",
            verdicts(rows, conditions),
            " LIMIT ",
            Parameter(LIMIT, "bigint"),
            ") _q (",
            names,
            ")",
        )
    return statement, list(cells.values())


def _cells_with_other_rules(
    before: RoleView, after: RoleView, table: str
) -> dict[tuple[Condition, Condition], list[str]]:  # fmt: skip
    """The columns that both may read, if not in the same rows, by the conditions of their cells."""
    found: dict[tuple[Condition, Condition], list[str]] = {}
    known = {column.name for column in after.columns(table)}
    for name in (column.name for column in before.columns(table) if column.name in known):
        masks = before.mask(table, name) or TRUE, after.mask(table, name) or TRUE
        if masks[0] != masks[1]:
            found.setdefault(masks, []).append(name)
    return found
