"""Lint: warnings about a valid document that its author probably did not intend (docs/reference/schema.md)."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from platform_site.http.errors import FieldError
from rows.rules import checks
from rows.rules.access import Access, WriteRule
from rows.rules.conditions import And, Compare, Condition, Constant, Not, Path, Quantified, parts
from rows.rules.principal import ANONYMOUS, MEMBER, SERVER, USER
from rows.rules.rules import Ruleset
from rows.schema.model import MAX_ERRORS, Action, RuleSpec, Schema, Table

_COLUMNS_NAMED: Final = 10


def of(schema: Schema) -> tuple[FieldError, ...]:
    """The first MAX_ERRORS, each with its path such as `tables.staff.rules.user.update`."""
    return tuple(islice(_all(schema), MAX_ERRORS))


def _all(schema: Schema) -> Iterator[FieldError]:
    ruleset = Ruleset(schema)
    yield from _public_emails(schema)
    for table in schema.tables.values():
        yield from _variables_in_conditions(table)
        checks_of_table = checks.read_all(table, ruleset.author)
        for role in table.rules:
            role_key = role if role in (USER, MEMBER, SERVER, ANONYMOUS) else f"{USER}:{role}"
            access = ruleset.access(table.name, role_key)
            at = f"tables.{table.name}.rules.{role}"
            yield from _hidden_but_writable(table, role, access, at)
            yield from _hidden_in_checks(role, access, checks_of_table, at)
            yield from _variables_in_patterns(table.rules[role], at)
            # An update without a check is checked by its `where`, which was asked of the row as it was before, too.
            specs = table.rules[role]
            if access.insert is not None:
                yield from _check_satisfied_by_new_row(table, access.insert, f"{at}.insert.check")
            if access.update is not None and any(spec.check is not None for spec in specs.get("update", ())):
                yield from _check_satisfied_by_new_row(table, access.update, f"{at}.update.check")


def _public_emails(schema: Schema) -> Iterator[FieldError]:
    if "email" in schema.users.get(ANONYMOUS, ()):
        message = "Everyone can read the emails of users: a publishable key is public. Leave email out for anonymous."
        yield FieldError(f"users.{ANONYMOUS}", "public_email", message)


def _hidden_but_writable(table: Table, role: str, access: Access, at: str) -> Iterator[FieldError]:
    if access.read is None or access.update is None:
        return
    hidden = [name for name in table.columns if name in access.update.columns.difference(access.read.columns)]
    if hidden:
        named = ", ".join(hidden[:_COLUMNS_NAMED]) + (", …" if len(hidden) > _COLUMNS_NAMED else "")
        message = f"{role} may overwrite {named} without reading the values. List the columns that it may change."
        yield FieldError(f"{at}.update", "hidden", message)


def _hidden_in_checks(role: str, access: Access, found: Mapping[str, Condition], at: str) -> Iterator[FieldError]:
    """A check depends on all columns, so the success of an update reveals hidden ones."""
    if access.read is None or access.update is None:
        return
    shown = frozenset(access.read.columns).difference(access.read.partial)
    written = access.update.columns | access.update.set.keys()
    for name, condition in found.items():
        columns = checks.columns_of(condition)
        hidden = sorted(columns - shown)
        if hidden and columns & written:
            named = ", ".join(hidden)
            message = f"{role} may not read {named}, but the result of the check {name} reveals something about them."
            yield FieldError(f"{at}.update", "hidden_in_check", message)


def _variables_in_patterns(specs: Mapping[Action, tuple[RuleSpec, ...]], at: str) -> Iterator[FieldError]:
    """A variable in a pattern matches literally; another operator is clearer."""
    for action, written in specs.items():
        for spec in written:
            for operator, variable in _patterns_with_variables((spec.where, spec.check)):
                yield _literal_variable(f"{at}.{action}", operator, variable)


def _variables_in_conditions(table: Table) -> Iterator[FieldError]:
    for name, document in table.conditions.items():
        for operator, variable in _patterns_with_variables(document):
            yield _literal_variable(f"tables.{table.name}.conditions.{name}", operator, variable)


def _literal_variable(path: str, operator: str, variable: str) -> FieldError:
    better = "$ieq" if operator == "$ilike" else "$eq"
    message = f"{variable} is matched literally here: % and _ in it are not wildcards. Use {better} instead."
    return FieldError(path, "variable_in_pattern", message)


def _patterns_with_variables(document: Any) -> Iterator[tuple[str, str]]:
    if isinstance(document, Mapping):
        for key, value in document.items():
            is_variable = isinstance(value, str) and value.startswith("$") and not value.startswith("$$")
            if key in ("$like", "$ilike") and is_variable:
                yield key, value
            else:
                yield from _patterns_with_variables(value)
    elif isinstance(document, list | tuple):
        for item in document:
            yield from _patterns_with_variables(item)


def _check_satisfied_by_new_row(table: Table, rule: WriteRule, at: str) -> Iterator[FieldError]:
    """A check that wants some row of the same table finds the row being written."""
    known = _conjuncts(rule.check) | {
        Compare(Path((), name), "eq", operand) for name, operand in rule.set.items() if operand is not None
    }
    for part in parts(rule.check):
        path = _path_back(part, table.name, known)
        if path is not None:
            message = (
                f"The row being written is already among the rows of {path} when this is checked, so it may satisfy "
                "the condition itself. Add a condition that excludes it, or check another table."
            )
            yield FieldError(at, "vouches_for_itself", message)
            return


def _path_back(part: Condition, table: str, known: set[Condition]) -> str | None:
    """The relation through which the written row itself may be found."""
    if not isinstance(part, Quantified) or part.kind != "some":
        return None
    if part.hop.many and part.hop.table == table:
        return None if _excludes(known, _conjuncts(part.condition)) else part.hop.relation
    for further in parts(part.condition):
        path = _path_back(further, table, known)
        if path is not None:
            return f"{part.hop.relation}.{path}"
    return None


def _conjuncts(condition: Condition) -> set[Condition]:
    return set(condition.conditions) if isinstance(condition, And) else {condition}


def _excludes(known: set[Condition], wanted: set[Condition]) -> bool:
    """Whether a row that is as `known` is certainly not as `wanted`."""
    for leaf in wanted:
        if not isinstance(leaf, Compare):
            continue
        if Not(leaf) in known:
            return True
        for other in known:
            if isinstance(other, Compare) and other.path == leaf.path and _contradict(other, leaf):
                return True
    return False


def _contradict(one: Compare, other: Compare) -> bool:
    both = one.operator == other.operator == "eq"
    return both and isinstance(one.operand, Constant) and isinstance(other.operand, Constant) and one != other
