"""Keyset pagination: the rows after the last one seen, in one query whose cost does not grow with depth. A page is
selected by values, not by offset, so rows that appear or vanish between two requests do not repeat or skip others. Used
by the lists of the control database and the regions; tenant rows compile their own statements with the same cursors.
Contract section 8."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from django.db.models import F, Model, Q, QuerySet
from django.db.models.constants import LOOKUP_SEP
from django.db.models.fields.tuple_lookups import Tuple, TupleGreaterThan, TupleLessThan

from platform_site.http import cursors
from platform_site.http.errors import ValidationFailed
from platform_site.postgres.sizes import OctetLength

DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 100
MAX_PAGE_BYTES: Final = 4 * 2**20
"""Bytes of a page's `heavy` texts; it ends before the item that would be too much, but never without one."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """One page. `next_cursor` is None on the last one."""

    items: list[Item]
    next_cursor: str | None


def read_limit(text: str | None, most: int = MAX_LIMIT) -> int:
    """The query parameter `limit`: 1 to `most` in plain digits, DEFAULT_LIMIT where it is absent. Raises
    ValidationFailed on the field `limit`. Contract section 8."""
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
) -> Page[Item]:
    """The page of `queryset` after `cursor` (None: the first), at most `limit` items: one query. `heavy` names a text
    column that may be large: then the page ends early, with HEAVIEST bytes of it, and the texts are read by a second
    query when it is known which ones fit. The rows must be instances. `order` names columns that are never null, `-`
    for descending; the last one must be unique (`["-created_at", "-id"]`). They may run in different directions and may
    cross relations (`project__name`); rows may be instances or the dicts of `.values()`. The cursor is bound to `kind`,
    `facts` and `order`. Raises ValidationFailed on the field `cursor`."""
    bound = [list(order), *facts]
    if cursor is not None:
        values = cursors.decode(kind, bound, cursor)
        if len(values) != len(order):
            raise ValueError("a cursor of this kind, facts and order was made with other values")
        queryset = queryset.filter(_after(order, values))
    ordered: Any = queryset.order_by(*order)
    if heavy is None:
        found = items = list(ordered[: limit + 1])
        fitting = min(limit, len(found))
    else:
        found = list(ordered.defer(heavy).annotate(octets=OctetLength(heavy))[: limit + 1])
        fitting = _fitting([each.octets for each in found[:limit]])
        items = list(ordered.filter(pk__in=[each.pk for each in found[:fitting]]))
    if fitting == len(found):
        return Page(items, None)
    del found[fitting:]
    return Page(items, cursors.encode(kind, bound, [_value(found[-1], name.removeprefix("-")) for name in order]))


def _fitting(octets: Sequence[int]) -> int:
    """How many texts of these sizes, from the first, fit on a page."""
    total = 0
    for number, size in enumerate(octets):
        total += size
        if number and total > MAX_PAGE_BYTES:
            return number
    return len(octets)


def _after(order: Sequence[str], values: Sequence[Any]) -> Any:
    """The condition "behind this row". One direction: PostgreSQL's row comparison, which an index answers by itself."""
    names = [name.removeprefix("-") for name in order]
    if len(order) > 1 and len({name.startswith("-") for name in order}) == 1:
        compare = TupleLessThan if order[0].startswith("-") else TupleGreaterThan
        return compare(Tuple(*map(F, names)), tuple(values))
    # Mixed: a > x, or a = x and what follows. The bound on the first column is said apart, since an index uses no OR.
    behind = Q()
    for name, value, signed in reversed(list(zip(names, values, order, strict=True))):
        beyond = Q(**{f"{name}__lt" if signed.startswith("-") else f"{name}__gt": value})
        behind = beyond | (Q(**{name: value}) & behind) if behind else beyond
    first = f"{names[0]}__lte" if order[0].startswith("-") else f"{names[0]}__gte"
    return Q(**{first: values[0]}) & behind


def _value(item: Any, name: str) -> Any:
    if isinstance(item, Mapping):
        return item[name]
    if not isinstance(item, Model):
        raise TypeError("pages are of model instances or of the dicts of values()")
    value: Any = item
    for part in name.split(LOOKUP_SEP):
        value = getattr(value, part)
    return value
