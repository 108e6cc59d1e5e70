"""Checks of a table: named conditions on a row's own cells, enforced by CHECK constraints."""

from collections.abc import Mapping
from dataclasses import replace

from rows.rules.conditions import (
    Always,
    Compare,
    Condition,
    Leaf,
    OtherCell,
    Path,
    Search,
    Variable,
    guarded,
    hops_of,
    leaves,
    operands,
    parts,
    paths_of,
    with_leaves,
)
from rows.rules.grammar import read_rule
from rows.rules.name_resolver import InvalidCondition, NameResolver
from rows.schema.model import Table


def read(table: Table, name: str, author: NameResolver) -> Condition:
    condition = read_rule(table.checks[name], table.name, author)
    if any(isinstance(operand, Variable) for operand in operands(condition)):
        raise InvalidCondition("", "invalid", "a check cannot use variables: it holds for every caller, at any time.")
    if any(hops_of(condition)):
        raise InvalidCondition("", "invalid", "a check is about the row's own columns, without relations.")
    if any(isinstance(leaf, Search) for leaf in leaves(condition)):
        raise InvalidCondition("", "misplaced", "a check cannot use $search.")
    condition = guarded(condition)  # as in a rule, a comparison with an empty list is false
    if isinstance(condition, Always):
        raise InvalidCondition("", "invalid", "must depend on a column: this is the same for every row.")
    return condition


def read_all(table: Table, author: NameResolver) -> dict[str, Condition]:
    return {name: read(table, name, author) for name in table.checks}


def columns_of(condition: Condition) -> frozenset[str]:
    return frozenset(path.column for part in parts(condition) for path in paths_of(part))


def renamed(condition: Condition, names: Mapping[str, str]) -> Condition:
    """The check after renaming columns; `names` maps old to new."""

    def moved(leaf: Leaf) -> Leaf:
        if isinstance(leaf, Search):
            raise TypeError(f"not part of a check: {leaf!r}")
        leaf = replace(leaf, path=Path((), names.get(leaf.path.column, leaf.path.column)))
        if isinstance(leaf, Compare) and isinstance(leaf.operand, OtherCell):
            other = leaf.operand
            leaf = replace(leaf, operand=replace(other, column=names.get(other.column, other.column)))
        return leaf

    return with_leaves(condition, moved)
