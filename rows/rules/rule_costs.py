"""What rules add to a statement, in the conditions that `rows.query.sql.conditions` counts while it compiles. Counted
here without compiling, which takes seconds for large rules."""

from collections.abc import Iterator
from typing import Final

from rows.rules.access import Access
from rows.rules.conditions import And, Compare, Condition, IsNull, Not, Or, Quantified, Search

MAX_CONDITIONS: Final = 8_000
"""Of one statement, with those of the rules on its way: about 3 s of CPU."""
SUBQUERY_COST: Final = 5


def is_too_large(access: Access) -> bool:
    """Whether the rules alone exceed MAX_CONDITIONS in a statement about their table."""
    return any(_exceeds(conditions) for conditions in by_statement(access))


def by_statement(access: Access) -> Iterator[list[Condition]]:
    """What each statement evaluates at least. The statements of a write also return the row."""
    read = access.read
    shown = [read.where, *set(read.partial.values())] if read else []
    yield shown
    if access.insert:
        yield [access.insert.check, *shown]
    if access.update:
        yield [access.update.where, access.update.where, access.update.check, *shown]
    if access.delete:
        yield [access.delete.where]


def _exceeds(conditions: list[Condition]) -> bool:
    total = 0
    for condition in conditions:
        total += cost(condition)
        if total > MAX_CONDITIONS:
            return True
    return False


def cost(condition: Condition) -> int:
    match condition:
        case And() | Or():
            return 1 + sum(map(cost, condition.conditions))
        case Not():
            return cost(condition.condition)
        case Quantified():
            return 1 + SUBQUERY_COST + cost(condition.condition)
        case Compare() | IsNull():
            return 1 + len(condition.path.hops) * (1 + SUBQUERY_COST)
        case Search():
            return 1 + len(condition.paths[0].hops) * (1 + SUBQUERY_COST)
        case _:
            return 1
