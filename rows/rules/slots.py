from collections.abc import Mapping

from rows.rules.conditions import And, Compare, Condition, Filter, Not, Operand, Or, Quantified, Search, Slot, operands


def compact(found: Filter) -> Filter:
    """The filter without values of dropped conditions: every value must be bound."""
    used = sorted({operand.index for operand in operands(found.shape) if isinstance(operand, Slot)})
    numbers = {old: new for new, old in enumerate(used)}
    return Filter(
        _renumber(found.shape, numbers),
        tuple(found.wire[index] for index in used),
        tuple(found.values[index] for index in used),
    )


def _renumber(condition: Condition, numbers: Mapping[int, int]) -> Condition:
    def moved(operand: Operand) -> Operand:
        return Slot(numbers[operand.index], operand.type) if isinstance(operand, Slot) else operand

    match condition:
        case Compare(path, operator, operand):
            return Compare(path, operator, moved(operand))
        case Search(paths, operand):
            return Search(paths, moved(operand))
        case Not(inner):
            leaf = _renumber(inner, numbers)
            return Not(leaf)  # type: ignore[arg-type]
        case And(conditions):
            return And(tuple(_renumber(part, numbers) for part in conditions))
        case Or(conditions):
            return Or(tuple(_renumber(part, numbers) for part in conditions))
        case Quantified(kind, hop, inner):
            return Quantified(kind, hop, _renumber(inner, numbers))
        case _:
            return condition
