"""Cautions: what a valid document allows and its author seldom means. They are told with a plan, and keep nothing from
being applied.

Pure, over a schema whose rules `rules.validate` has found no fault with. Called by `schemas`; docs/reference/schema.md
has the list.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from platform_site.http.errors import FieldError
from rows.rules.conditions import And, Compare, Condition, Constant, Not, Path, Quantified, parts
from rows.rules.rules import ANONYMOUS, MEMBER, SERVER, USER, Access, Ruleset, WriteRule
from rows.schema.model import MAX_ERRORS, Action, RuleSpec, Schema, Table

_COLUMNS_NAMED: Final = 10
"""In one caution."""


def of(schema: Schema) -> tuple[FieldError, ...]:
    """The first MAX_ERRORS of them, each with its path such as `tables.staff.rules.user.update`."""
    return tuple(islice(_all(schema), MAX_ERRORS))


def _all(schema: Schema) -> Iterator[FieldError]:
    ruleset = Ruleset(schema)
    for table in schema.tables.values():
        for role in table.rules:
            standing = role if role in (USER, MEMBER, SERVER, ANONYMOUS) else f"{USER}:{role}"
            access = ruleset.access(table.name, standing)
            at = f"tables.{table.name}.rules.{role}"
            yield from _overwritten_unseen(table, role, access, at)
            yield from _variables_in_patterns(table.rules[role], at)
            # An update without a check is checked by its `where`, which was asked of the row as it was before, too.
            specs = table.rules[role]
            if access.insert is not None:
                yield from _vouching_for_itself(table, access.insert, f"{at}.insert.check")
            if access.update is not None and any(spec.check is not None for spec in specs.get("update", ())):
                yield from _vouching_for_itself(table, access.update, f"{at}.update.check")


def _overwritten_unseen(table: Table, role: str, access: Access, at: str) -> Iterator[FieldError]:
    if access.read is None or access.update is None:
        return
    hidden = [name for name in table.columns if name in access.update.columns.difference(access.read.columns)]
    if hidden:
        named = ", ".join(hidden[:_COLUMNS_NAMED]) + (", …" if len(hidden) > _COLUMNS_NAMED else "")
        message = f"{role} may overwrite {named} and not read what is there. Name among its columns what is meant."
        yield FieldError(f"{at}.update", "hidden", message)


def _variables_in_patterns(specs: Mapping[Action, tuple[RuleSpec, ...]], at: str) -> Iterator[FieldError]:
    """A variable in a pattern matches literally, so another operator says what is meant."""
    for action, written in specs.items():
        for spec in written:
            for operator, variable in _patterns_with_variables((spec.where, spec.check)):
                better = "$ieq" if operator == "$ilike" else "$eq"
                message = f"{variable} is matched literally here: % and _ in it are no wildcards. Use {better} instead."
                yield FieldError(f"{at}.{action}", "variable_in_pattern", message)


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


def _vouching_for_itself(table: Table, rule: WriteRule, at: str) -> Iterator[FieldError]:
    """A check is asked when the row is there. One that wants some row of the same table, the caller's membership say,
    finds the row that is being written among them."""
    said = _together(rule.check) | {
        Compare(Path((), name), "eq", operand) for name, operand in rule.set.items() if operand is not None
    }
    for part in parts(rule.check):
        way = _way_back(part, table.name, said)
        if way is not None:
            message = (
                f"When this is asked the row that is written is among the rows of {way}, and may be the one that is "
                "wanted. Say beside it what the row itself must not be, or ask another table."
            )
            yield FieldError(at, "vouches_for_itself", message)
            return


def _way_back(part: Condition, table: str, said: set[Condition]) -> str | None:
    """The relation through which some row of `table` is wanted that may be the one with all that is `said`."""
    if not isinstance(part, Quantified) or part.kind != "some":
        return None
    if part.hop.many and part.hop.table == table:
        return None if _excludes(said, _together(part.condition)) else part.hop.relation
    for further in parts(part.condition):
        way = _way_back(further, table, said)
        if way is not None:
            return f"{part.hop.relation}.{way}"
    return None


def _together(condition: Condition) -> set[Condition]:
    return set(condition.conditions) if isinstance(condition, And) else {condition}


def _excludes(said: set[Condition], wanted: set[Condition]) -> bool:
    """Whether a row that is as `said` is certainly not as `wanted`."""
    for leaf in wanted:
        if not isinstance(leaf, Compare):
            continue
        if Not(leaf) in said:
            return True
        for other in said:
            if isinstance(other, Compare) and other.path == leaf.path and _differ(other, leaf):
                return True
    return False


def _differ(one: Compare, other: Compare) -> bool:
    both = one.operator == other.operator == "eq"
    return both and isinstance(one.operand, Constant) and isinstance(other.operand, Constant) and one != other
