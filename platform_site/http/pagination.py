"""Keyset pagination: the cost does not grow with depth, and no row is repeated or skipped. Tenant rows have their own
statements with the same cursors. Contract section 8."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Generic, TypeVar

from django.db.models import F, QuerySet
from django.db.models.fields.tuple_lookups import Tuple, TupleGreaterThan, TupleLessThan

from platform_site.http import cursors
from platform_site.http.errors import ValidationFailed
from platform_site.postgres.sql_functions import OctetLength

DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 100
MAX_PAGE_BYTES: Final = 4 * 2**20
"""Bytes of a page's `heavy` texts; at least one item is returned."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    items: list[Item]
    next_cursor: str | None


def read_limit(text: str | None, most: int = MAX_LIMIT) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= most:
        return int(text)
    raise ValidationFailed.of("limit", "out_of_range", f"limit must be a whole number from 1 to {most}.")


def paginate(
    queryset: QuerySet[Any, Item],
    order: Sequence[str],
    limit: int,
    cursor: str | None,
    kind: str,
    facts: Sequence[cursors.Fact] = (),
    *,
    heavy: str | None = None,
    merged_with: Sequence[QuerySet[Any, Item]] = (),
) -> Page[Item]:
    """One query. `order` names non-null columns of one direction, the last unique (`["-created_at", "-id"]`). `heavy`
    names a large text column, which is read by a second query and may end the page early. Items of disjoint
    `merged_with` are merged in: of each no more than a page is read. Raises ValidationFailed on `cursor`."""
    bound = [list(order), *facts]
    parts = [queryset, *merged_with]
    if cursor is not None:
        values = cursors.decode(kind, bound, cursor)
        if len(values) != len(order):
            raise ValueError("a cursor of this kind, facts and order was made with other values")
        parts = [part.filter(_after(order, values)) for part in parts]
    ordered: Any = parts[0].order_by(*order)
    if merged_with:  # with a limit before the union, or all of each would be read and sorted
        first, *others = (part.order_by(*order)[: limit + 1] for part in parts)
        ordered = first.union(*others, all=True).order_by(*order)
    if heavy is None:
        found = items = list(ordered[: limit + 1])
        fitting = min(limit, len(found))
    else:
        found = list(ordered.defer(heavy).annotate(octets=OctetLength(heavy))[: limit + 1])
        totals = enumerate(accumulate(each.octets for each in found[:limit]))
        fitting = next((index for index, total in totals if index and total > MAX_PAGE_BYTES), min(limit, len(found)))
        items = list(ordered.filter(pk__in=[each.pk for each in found[:fitting]]))
    if fitting == len(found):
        return Page(items, None)
    del found[fitting:]
    return Page(items, cursors.encode(kind, bound, [getattr(found[-1], name.removeprefix("-")) for name in order]))


def _after(order: Sequence[str], values: Sequence[Any]) -> Any:
    compare = TupleLessThan if order[0].startswith("-") else TupleGreaterThan
    return compare(Tuple(*(F(name.removeprefix("-")) for name in order)), tuple(values))
