"""One page of a list: its order, and the ranges behind a cursor."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from django.db.models import Expression, F, OrderBy, QuerySet

from rows.query.params import OrderKey
from rows.query.sql.expressions import NEVER, Parameter, Piece, boolean, joined
from rows.query.sql.statement import LIMIT, After, Writer, combine, listed
from rows.schema.model import Table


def page(
    writer: Writer,
    table: Table,
    rows: "QuerySet[Any, Any]",
    columns: Collection[str],
    order: tuple[OrderKey, ...],
    after: tuple[bool, ...] | None,
) -> tuple[Piece, list[str]]:
    """The rows of a page with `columns`, and the names of their order keys. Behind a cursor it is a UNION ALL of
    ranges, each an index range with its own limit: one condition with OR would scan the index from its start."""
    keys: list[tuple[OrderKey, str, Any]] = []
    extra: dict[str, Any] = {}
    for index, key in enumerate(order):
        path = key.path
        if not path.hops and writer.role_view.mask(table.name, path.column) is None:
            keys.append((key, path.column, F(path.column)))
        else:
            extra[f"_k{index}"] = value = writer.role_view.reading.value(path, table.name)
            keys.append((key, f"_k{index}", value))
    limit: Piece = (" LIMIT %s::bigint", [Parameter(LIMIT, "bigint")])
    names = [name for _, name, _ in keys]
    selected = [name for name in table.all_columns if name in columns or name in names]
    rows = rows.annotate(**extra).values_list(*selected, *extra).order_by(
        *[_order(key, F(name)) for key, name, _ in keys]
    )  # fmt: skip
    ranges = [[]] if after is None else list(_ranges([(key, value) for key, _, value in keys], after))
    pages = [combine(writer.queryset(rows.filter(*conditions)), limit) for conditions in ranges]
    if len(pages) == 1:
        return pages[0], names
    ordered = ", ".join(f'"{name}"{direction(key)}' for key, name, _ in keys)
    return combine(
        listed([combine("(", page, ")") for page in pages], " UNION ALL "), f" ORDER BY {ordered}", limit
    ), names


def _order(key: OrderKey, value: Any) -> OrderBy:
    """NULLS FIRST or LAST only if not the default, so that an index can serve it."""
    if key.nulls_first == key.descending:
        return OrderBy(value, descending=key.descending)
    return OrderBy(
        value, descending=key.descending, nulls_first=key.nulls_first or None, nulls_last=not key.nulls_first or None
    )


def direction(key: OrderKey) -> str:
    nulls = "" if key.nulls_first == key.descending else " NULLS FIRST" if key.nulls_first else " NULLS LAST"
    return f"{' DESC' if key.descending else ''}{nulls}"


def _ranges(keys: list[tuple[OrderKey, Any]], after: tuple[bool, ...]) -> Iterable[list[Expression]]:
    tail = len(keys) - 1
    while tail > 0 and _joins_row(keys[tail - 1][0], keys[tail][0]) and not after[tail - 1]:
        tail -= 1
    # Keys from `tail` on run in one direction and are never null: PostgreSQL compares them as a row, one range of an
    # index.
    left = joined(", ", [value for _, value in keys[tail:]], NEVER)
    right = joined(", ", [_bound(index, key) for index, (key, _) in list(enumerate(keys))[tail:]], NEVER)
    sign = " < " if keys[-1][0].descending else " > "
    yield [*_equal(keys[:tail], after), boolean("(", left, sign, right, ")")]
    for index in range(tail - 1, -1, -1):
        key, value = keys[index]
        before = _equal(keys[:index], after)
        if after[index]:
            if key.nulls_first:
                yield [*before, boolean("(", value, " IS NOT NULL)")]
            continue
        yield [*before, boolean("(", value, " < " if key.descending else " > ", _bound(index, key), ")")]
        if key.null and not key.nulls_first:
            yield [*before, boolean("(", value, " IS NULL)")]


def _joins_row(one: OrderKey, other: OrderKey) -> bool:
    return one.descending == other.descending and not one.null


def _bound(index: int, key: OrderKey) -> Parameter:
    return Parameter(After(index), key.type)


def _equal(keys: Sequence[tuple[OrderKey, Any]], after: Sequence[bool]) -> list[Expression]:
    return [
        boolean("(", value, " IS NULL)") if after[index] else boolean("(", value, " = ", _bound(index, key), ")")
        for index, (key, value) in enumerate(keys)
    ]
