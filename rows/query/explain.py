"""Explains why a row is visible, clause by clause, by the compiled conditions that enforce the rules. The caller
must see the row, and only gets values that it may read; a user's email, role and claims need `users:manage`.
Quantifiers are shown if all rows and cells involved are visible."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from platform_site.http import exact_json
from platform_site.http.errors import NotFound
from platform_site.postgres.libpq import Row
from rows.query.context import QueryContext
from rows.query.role_view import RoleView
from rows.query.service import canonical_text
from rows.query.sql.expressions import Sql
from rows.query.sql.statement import ROW_ID, Statement, build_statement, is_current, is_row, verdicts
from rows.rules.access import Access, Clause
from rows.rules.conditions import TRUE, Condition, Path, Quantified, Variable, guarded, operands, parts, paths_of, reads
from rows.rules.grammar import read_rule
from rows.rules.name_resolver import NameResolver
from rows.rules.operators import QUANTIFIERS
from rows.rules.principal import Principal, resolve
from rows.schema.column_values import ROW_ID as ROW_ID_PATTERN
from rows.schema.model import Hop, Table

T = TypeVar("T")

_PUBLIC_VARIABLES: Final = frozenset({"user.id", "key.id", "now"})


@dataclass(frozen=True, slots=True)
class _Rule:
    action: str
    condition: Condition
    clauses: tuple[Clause, ...]


def _rules_of(access: Access) -> list[_Rule]:
    found = [_Rule("read", grant.where, grant.clauses) for grant in access.read.grants] if access.read else []
    for action, rule in (("update", access.update), ("delete", access.delete)):
        if rule is not None:
            found.append(_Rule(action, rule.where, rule.where_clauses))
    return found


def explain(context: QueryContext, name: str, row_id: str, subject: Principal, *, knows_users: bool) -> dict[str, Any]:
    """`{"visible", "rules": [{"role", "action", "verdict", "clauses": [{"clause", "verdict", "why"}]}],
    "hidden_columns": [{"column", "why"}]}` for `subject`. `knows_users`: the caller may see users' email, role and
    claims. Raises NotFound."""
    knows_users = knows_users or subject == context.principal
    table = context.readable(name)
    if not ROW_ID_PATTERN.fullmatch(row_id):
        raise NotFound
    of_subject = QueryContext(context.environment, subject, context.compiled, context.connection)
    access = context.compiled.rules.access(name, of_subject.role_key)
    rules = _rules_of(access)
    clauses = [clause for rule in rules for clause in rule.clauses]
    paths = _unique(path for clause in clauses for path in _paths(clause.condition) if _is_known(context, name, path))
    author = context.compiled.rules.author
    quantifiers = {clause: dict(_quantifiers(json.loads(clause.text), name, author)) for clause in clauses}

    def may_show(condition: Condition) -> bool:
        is_public = all(variable.name in _PUBLIC_VARIABLES for variable in _variables(condition))
        return (knows_users or is_public) and _is_fully_visible(context, name, condition)

    of_clauses = (condition for clause in clauses for condition in quantifiers[clause].values())
    visible_quantifiers = _unique(filter(may_show, of_clauses))
    _, now, *texts = _read_row(context, context.statement(_cells, name, paths), row_id)
    cells = {path: None if text is None else exact_json.loads(text) for path, text in zip(paths, texts, strict=True)}
    masks = access.read.partial if access.read else {}
    parts_of_rules = [*(rule.condition for rule in rules), *(clause.condition for clause in clauses)]
    conditions = _unique([TRUE, *visible_quantifiers, *parts_of_rules, *masks.values()])
    verdicts_of_row = _read_row(of_subject, of_subject.statement(_verdicts, name, conditions), row_id)
    held = {condition: cell == b"t" for condition, cell in zip(conditions, verdicts_of_row, strict=True)}
    at = datetime.fromisoformat((now or b"").decode())
    facts = _Facts(cells, quantifiers, visible_quantifiers, held, subject, at, knows_users)
    explanations = [
        {
            "role": access.role,
            "action": rule.action,
            "verdict": held[rule.condition],
            "clauses": [
                {"clause": clause.text, "verdict": held[clause.condition], "why": _why(clause, facts)}
                for clause in rule.clauses
            ],
        }
        for rule in rules
    ]
    for action in ("read", "update", "delete"):
        if not any(rule["action"] == action for rule in explanations):
            explanations.append({"role": access.role, "action": action, "verdict": False, "clauses": []})
    visible = any(rule["action"] == "read" and rule["verdict"] for rule in explanations)
    unseen = [column for column, condition in masks.items() if not held[condition]]
    return {
        "visible": visible,
        "rules": explanations,
        "hidden_columns": list(_hidden(context, table, access, unseen)) if visible else [],
    }


def _read_row(context: QueryContext, statement: Statement, row_id: str) -> Row:
    rows = context.read(statement, {ROW_ID: row_id.encode()})
    if not rows:
        context.verify()
        raise NotFound
    return rows[0]


@dataclass(frozen=True, slots=True)
class _Facts:
    """What clauses refer to."""

    cells: dict[Path, Any]
    quantifiers: Mapping[Clause, Mapping[str, Condition]]
    """By clause and path, such as `$or.1.memberships.$some`. Those of named conditions, too."""
    visible: Collection[Condition]
    """Quantifiers whose result may be shown."""
    held: Mapping[Condition, bool]
    principal: Principal
    now: datetime
    knows_users: bool


def _why(clause: Clause, facts: _Facts) -> str:
    cells = facts.cells
    reasons = [
        f"{canonical_text(path)} is {_json(cells[path])}" for path in _unique(_paths(clause.condition)) if path in cells
    ]
    for at, condition in facts.quantifiers[clause].items():
        if condition in facts.visible:
            reasons.append(f"{at} is {_json(facts.held[condition])}")
        else:
            reasons += [f"the rows of {path} are checked" for path in _unique(_relation_paths(condition))]
    for variable in _unique(_variables(clause.condition)):
        value = resolve(variable, facts.principal, facts.now)
        if value is None:
            reasons.append(f"${variable.name} is missing, which makes the clause false")
        elif facts.knows_users or variable.name in _PUBLIC_VARIABLES:
            reasons.append(f"${variable.name} is {_json(value)}")
        else:
            reasons.append(f"${variable.name} has a value")
    return "; ".join(reasons)


def _unique(found: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(found))


_SHOWN: Final = 200


def _json(value: Any) -> str:
    text = exact_json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text):,} characters)"


def _variables(condition: Condition) -> Iterable[Variable]:
    return (operand for operand in operands(condition) if isinstance(operand, Variable))


def _paths(condition: Condition) -> Iterable[Path]:
    for part in parts(condition):
        yield from paths_of(part)


def _quantifiers(
    document: Mapping[str, Any], table: str, author: NameResolver, at: str = ""
) -> Iterator[tuple[str, Condition]]:
    for key, value in document.items():
        if key in ("$and", "$or"):
            for index, part in enumerate(value):
                yield from _quantifiers(part, table, author, f"{at}{key}.{index}.")
        elif key == "$not":
            yield from _quantifiers(value, table, author, f"{at}{key}.")
        elif key == "$is":
            yield from _quantifiers(author.named_condition(table, value) or {}, table, author, f"{at}{key}.")
        elif isinstance(value, Mapping):
            for word, inner in value.items():
                if word in QUANTIFIERS or word == "$is":
                    yield f"{at}{key}.{word}", guarded(read_rule({key: {word: inner}}, table, author))


def _is_fully_visible(context: QueryContext, table: str, condition: Condition) -> bool:
    return all(
        _sees_all_rows(context, at, step) if isinstance(step, Hop) else _sees_column(context, at, step)
        for at, step in reads(condition, table)
    )


def _sees_all_rows(context: QueryContext, table: str, hop: Hop) -> bool:
    """And the cell that links to them."""
    far = context.compiled.rules.access(hop.table, context.role_key).read
    return (
        context.resolver.relation(table, hop.relation) == hop
        and far is not None
        and far.where == TRUE
        and _sees_column(context, hop.table if hop.many else table, hop.column)
    )


def _sees_column(context: QueryContext, table: str, column: str) -> bool:
    rule = context.compiled.rules.access(table, context.role_key).read
    return rule is not None and rule.cell(column) == TRUE


def _relation_paths(condition: Condition) -> Iterable[str]:
    """The relations that a condition uses, such as `board.members`, to say that hidden rows may matter."""
    for part in parts(condition):
        if isinstance(part, Quantified):
            further = [f"{part.hop.relation}.{path}" for path in _relation_paths(part.condition)]
            yield from further or [part.hop.relation]


def _is_known(context: QueryContext, table: str, path: Path) -> bool:
    for hop in path.hops:
        if context.resolver.relation(table, hop.relation) != hop:
            return False
        table = hop.table
    return context.resolver.column(table, path.column) is not None


def _hidden(context: QueryContext, table: Table, access: Access, unseen: Collection[str]) -> Iterable[dict[str, str]]:
    shown = access.read.columns if access.read else ()
    for name in context.resolver.columns(table.name):
        if name not in shown:
            yield {"column": name, "why": "No read rule of this role shows the column."}
        elif name in unseen:
            yield {"column": name, "why": "No read rule that matches this row shows the column."}


def _cells(role_view: RoleView, table: str, paths: tuple[Path, ...]) -> Statement:
    rows = role_view.models[table].objects.visible_to(role_view)
    values = {
        f"_p{index}": Sql("to_json(", role_view.reading.value(path, table), ")") for index, path in enumerate(paths)
    }
    now = Sql("to_char(statement_timestamp(), 'YYYY-MM-DD HH24:MI:SS.USOF')")
    rows = rows.filter(is_row(), is_current()).annotate(_now=now, **values)
    return build_statement(role_view.alias, rows.values_list("id", "_now", *values))


def _verdicts(role_view: RoleView, table: str, conditions: tuple[Condition, ...]) -> Statement:
    rows = role_view.models[table].unruled.using(role_view.alias).filter(is_row(), is_current())
    compiled = (role_view.rules.condition(condition, table) for condition in conditions)
    return build_statement(role_view.alias, verdicts(rows, compiled))
