"""Lint: warnings about a valid document that its author probably did not intend (docs/reference/schema.md)."""

import difflib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from platform_site.http.errors import FieldError
from rows.rules import checks
from rows.rules.access import ReadRule, WriteRule
from rows.rules.conditions import And, Compare, Condition, Constant, Not, Or, Path, Quantified, parts
from rows.rules.principal import ANONYMOUS, BUILT_IN_ROLES, USER
from rows.rules.rules import Ruleset
from rows.schema.model import MAX_ERRORS, Schema, Table

_COLUMNS_NAMED: Final = 10
_OF_OTHERS: Final = {"anon": ANONYMOUS, "public": ANONYMOUS, "authenticated": USER}
"""What other products call them."""


def of(schema: Schema) -> tuple[FieldError, ...]:
    """The first MAX_ERRORS, each with its path such as `tables.staff.rules.user.update`."""
    return tuple(islice(_all(schema), MAX_ERRORS))


def _all(schema: Schema) -> Iterator[FieldError]:
    ruleset = Ruleset(schema)
    if "email" in schema.users.get(ANONYMOUS, ()):
        message = "Everyone can read the emails of users: a publishable key is public. Leave email out for anonymous."
        yield FieldError(f"users.{ANONYMOUS}", "public_email", message)
    for role in schema.users:
        yield from _misspelled_role(role, f"users.{role}")
    for table in schema.tables.values():
        for name, document in table.conditions.items():
            yield from _variables_in_patterns(document, f"tables.{table.name}.conditions.{name}")
        checks_of_table = checks.read_all(table, ruleset.author)
        for role in table.rules:
            role_key = role if role in BUILT_IN_ROLES else f"{USER}:{role}"
            access = ruleset.access(table.name, role_key)
            at = f"tables.{table.name}.rules.{role}"
            yield from _misspelled_role(role, at)
            if access.read is not None and access.update is not None:
                yield from _hidden_but_writable(table, role, access.read, access.update, at)
                yield from _hidden_in_checks(role, access.read, access.update, checks_of_table, at)
            specs = table.rules[role]
            for action, written in specs.items():
                for spec in written:
                    yield from _variables_in_patterns((spec.where, spec.check), f"{at}.{action}")
            # Without a check, an update is checked by its `where`, which the old row had to match too.
            if access.insert is not None:
                yield from _check_satisfied_by_new_row(table, access.insert, f"{at}.insert.check")
            if access.update is not None and any(spec.check is not None for spec in specs.get("update", ())):
                yield from _check_satisfied_by_new_row(table, access.update, f"{at}.update.check")


def _misspelled_role(role: str, at: str) -> Iterator[FieldError]:
    """Any name is a role, so a misspelled built-in one would apply to nobody."""
    if role in BUILT_IN_ROLES:
        return
    close = difflib.get_close_matches(role, BUILT_IN_ROLES, n=1, cutoff=0.8)
    meant = _OF_OTHERS.get(role) or next((one for one in close if one[0] == role[0]), None)
    if meant:
        message = f'This applies only to users who were given the role "{role}"; did you mean "{meant}"?'
        yield FieldError(at, "misspelled_role", message)


def _hidden_but_writable(table: Table, role: str, read: ReadRule, update: WriteRule, at: str) -> Iterator[FieldError]:
    hidden = [name for name in table.columns if name in update.columns.difference(read.columns)]
    if hidden:
        named = ", ".join(hidden[:_COLUMNS_NAMED]) + (", …" if len(hidden) > _COLUMNS_NAMED else "")
        message = f"{role} may overwrite {named} without reading the values. List the columns that it may change."
        yield FieldError(f"{at}.update", "hidden", message)


def _hidden_in_checks(
    role: str, read: ReadRule, update: WriteRule, found: Mapping[str, Condition], at: str
) -> Iterator[FieldError]:
    """A check depends on all columns, so the success of an update reveals hidden ones."""
    shown = frozenset(read.columns).difference(read.partial)
    written = update.columns | update.set.keys()
    for name, condition in found.items():
        columns = checks.columns_of(condition)
        hidden = sorted(columns - shown)
        if hidden and columns & written:
            named = ", ".join(hidden)
            message = f"{role} may not read {named}, but the result of the check {name} reveals something about them."
            yield FieldError(f"{at}.update", "hidden_in_check", message)


def _variables_in_patterns(document: Any, path: str) -> Iterator[FieldError]:
    """A variable in a pattern matches literally; another operator is clearer."""
    if isinstance(document, Mapping):
        for key, value in document.items():
            is_variable = isinstance(value, str) and value.startswith("$") and not value.startswith("$$")
            if key in ("$like", "$ilike") and is_variable:
                better = "$ieq" if key == "$ilike" else "$eq"
                message = f"{value} is matched literally here: % and _ in it are not wildcards. Use {better} instead."
                yield FieldError(path, "variable_in_pattern", message)
            else:
                yield from _variables_in_patterns(value, path)
    elif isinstance(document, list | tuple):
        for item in document:
            yield from _variables_in_patterns(item, path)


def _check_satisfied_by_new_row(table: Table, rule: WriteRule, at: str) -> Iterator[FieldError]:
    """A check that wants some row of the same table finds the row being written."""
    written: set[Condition] = {
        Compare(Path((), name), "eq", operand) for name, operand in rule.set.items() if operand is not None
    }
    for part, known in _with_facts(rule.check, written):
        path = _path_back(part, table.name, known)
        if path is not None:
            message = (
                f"The row being written is already among the rows of {path} when this is checked, so it may satisfy "
                "the condition itself. Add a condition that excludes it, or check another table."
            )
            yield FieldError(at, "vouches_for_itself", message)
            return


def _with_facts(condition: Condition, known: set[Condition]) -> Iterator[tuple[Condition, set[Condition]]]:
    """Each part, with what is certain of the row where the part decides."""
    if isinstance(condition, Or):
        for each in condition.conditions:
            yield from _with_facts(each, known)
    elif isinstance(condition, And):
        for each in condition.conditions:
            yield from _with_facts(each, known | set(condition.conditions))
    else:
        yield from ((part, known | {condition}) for part in parts(condition))


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
    leaves = [leaf for leaf in wanted if isinstance(leaf, Compare)]
    facts = [fact for fact in known if isinstance(fact, Compare)]
    return any(Not(leaf) in known or any(_contradict(fact, leaf) for fact in facts) for leaf in leaves)


def _contradict(one: Compare, other: Compare) -> bool:
    both = one.path == other.path and one.operator == other.operator == "eq"
    return both and isinstance(one.operand, Constant) and isinstance(other.operand, Constant) and one != other
