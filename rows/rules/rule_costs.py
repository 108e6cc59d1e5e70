"""What rules add to a statement, in the conditions that `rows.query.sql.conditions` counts while it compiles. Counted
here without compiling, which takes seconds for large rules."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from rows.rules.access import Access
from rows.rules.conditions import And, Compare, Condition, IsNull, Not, Or, Quantified, Search, paths_of

MAX_CONDITIONS: Final = 8_000
"""Of one statement, with those of the rules on its way: about 3 s of CPU."""
SUBQUERY_COST: Final = 5


def is_too_large(access: Access) -> bool:
    """In a statement about all columns."""
    return any(
        total > MAX_CONDITIONS for conditions in by_statement(access) for total in accumulate(map(cost, conditions))
    )


def by_statement(access: Access) -> Iterator[list[Condition]]:
    """What one statement evaluates at least: a write may evaluate its rules in several."""
    if access.read:
        yield [access.read.where, *set(access.read.partial.values())]
    if access.insert:
        yield [access.insert.check]
    if access.update:
        yield [access.update.where]
        yield [access.update.check]
    if access.delete:
        yield [access.delete.where]


def cost(condition: Condition) -> int:
    match condition:
        case And() | Or():
            return 1 + sum(map(cost, condition.conditions))
        case Not():
            return cost(condition.condition)
        case Quantified():
            return 1 + SUBQUERY_COST + cost(condition.condition)
        case Compare() | IsNull() | Search():
            return 1 + len(paths_of(condition)[0].hops) * (1 + SUBQUERY_COST)
        case _:
            return 1
