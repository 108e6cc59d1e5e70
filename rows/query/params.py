"""What a caller wants to see of rows, and in which order: the texts of `order`, `with` and `columns`.

    parse_order   `due_on.desc.nullslast,priority`   → OrderKeys, complete down to `id`
    parse_with    `list,comments.author`             → a tree of Withs
    parse_columns `title,list.name`                  → the columns of the row, the tree narrowed

Names go through a `Sight` and everything is bounded, as in `rows.rules.grammar`. docs/reference/filters.md.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from platform_site.http.errors import ValidationFailed
from rows.memo import Memo
from rows.rules.conditions import Hop, Path
from rows.rules.grammar import MAX_HOPS, Sight, shown
from rows.schema.identifiers import did_you_mean
from rows.schema.model import ID, SQL_TYPES
from rows.schema.types import Type

MAX_ORDER: Final = 3
MAX_RELATIONS: Final = 10
MAX_CHOSEN: Final = 100
"""Names in a caller's `columns`: half of what a table can have; of more, the others can be taken away from all."""
MAX_COLUMNS_TEXT: Final = 4_000
_MAX_TEXT: Final = 1_000

# Order


@dataclass(frozen=True, slots=True)
class OrderKey:
    """One key of an order; `type` is the operand type by which a cursor binds its value, `null` whether it may be null
    (any key over a relation may)."""

    path: Path
    type: Type
    descending: bool = False
    nulls_first: bool = False
    null: bool = False


ID_KEY: Final = OrderKey(Path((), "id"), "text")
DEFAULT_ORDER: Final = (ID_KEY,)

Made = TypeVar("Made")
_orders: Final[Memo[tuple[int, str, str], tuple[OrderKey, ...]]] = Memo(1_024)


def _worded(
    member: str,
    text: Any,
    table: str,
    sight: Sight,
    memo: Memo[tuple[int, str, str], Made],
    read: Callable[[str, str, Sight], Made],
    longest: int = _MAX_TEXT,
) -> Made:
    """What `read` makes of a text of bounded length, remembered in `memo`. Raises ValidationFailed on `member`."""
    if not isinstance(text, str):
        raise ValidationFailed.of(member, "wrong_type", "Must be a string.")
    if len(text) > longest:
        raise ValidationFailed.of(member, "too_long", f"Must have at most {longest} characters.")
    key = (sight.token, table, text)
    found = memo.get(key)
    if found is None:
        if not all(map(str.strip, text.split(","))):
            message = f'A name is empty: names stand between commas. To ask for none, leave "{member}" out.'
            raise ValidationFailed.of(member, "unknown", message)
        found = read(text, table, sight)
        memo.put(key, found)
    return found


def parse_order(order: Any, table: str, sight: Sight) -> tuple[OrderKey, ...]:
    """A caller's `order`, or None for the order of ids: at most MAX_ORDER keys, and `id` last in the direction of the
    key before, so that the order is total. Raises ValidationFailed on the field `order`.
    """
    if order is None:
        return DEFAULT_ORDER
    return _worded("order", order, table, sight, _orders, _read_order)


def _read_order(order: str, table: str, sight: Sight) -> tuple[OrderKey, ...]:
    texts = order.split(",", MAX_ORDER + 1)
    if len(texts) > MAX_ORDER:
        raise ValidationFailed.of("order", "too_many", f"At most {MAX_ORDER} columns.")
    keys: list[OrderKey] = []
    for text in texts:
        key = _order_key(text.strip(), table, sight)
        if any(key.path == other.path for other in keys):
            raise ValidationFailed.of("order", "invalid", f"{shown(text)}: stands there twice.")
        keys.append(key)
    for number, key in enumerate(keys, 1):
        if key.path == ID_KEY.path:
            return tuple(keys[:number])  # nothing after a unique column can matter
    last = keys[-1]
    return (*keys, OrderKey(ID_KEY.path, "text", last.descending, last.descending))


def _order_key(text: str, table: str, sight: Sight) -> OrderKey:
    parts = text.split(".", MAX_HOPS + 3)
    nulls = parts.pop() if len(parts) > 1 and parts[-1] in ("nullsfirst", "nullslast") else None
    direction = parts.pop() if len(parts) > 1 and parts[-1] in ("asc", "desc") else "asc"
    hops: list[Hop] = []
    *steps, name = parts
    for step in steps:
        hop = sight.relation(table, step)
        if hop is None or hop.many or len(hops) == MAX_HOPS:
            if hop is None and sight.column(table, step) is not None:
                message = f"{shown(text)}: behind a column stands asc or desc, then nullsfirst or nullslast."
                raise ValidationFailed.of("order", "invalid", message)
            raise _unknown_order(text)
        hops.append(hop)
        table = hop.table
    column = sight.column(table, name)
    if column is None:
        raise _unknown_order(text)
    if column.type in ("json", "text[]"):
        raise ValidationFailed.of("order", "invalid", f"{shown(text)}: a {column.type} column has no order.")
    descending = direction == "desc"
    null = column.null or bool(hops)
    # A column that is never null sorts alike either way: one spelling, one statement, one index.
    nulls_first = nulls == "nullsfirst" if nulls and null else descending
    return OrderKey(Path(tuple(hops), name), SQL_TYPES[column.type], descending, nulls_first, null)


def _unknown_order(text: str) -> ValidationFailed:
    return ValidationFailed.of(
        "order",
        "unknown",
        f"{shown(text)}: there is no such column. An order is written column.asc or column.desc, with .nullsfirst or "
        ".nullslast behind it if need be.",
    )


# With


@dataclass(frozen=True, slots=True)
class With:
    """A relation to embed, those to embed in it, and which columns of its rows to show; None: all that may be read."""

    hop: Hop
    inside: "tuple[With, ...]" = ()
    columns: tuple[str, ...] | None = None


_withs: Final[Memo[tuple[int, str, str], tuple[With, ...]]] = Memo(1_024)


def parse_with(text: Any, table: str, sight: Sight) -> tuple[With, ...]:
    """A caller's `with`, or None for nothing: at most MAX_RELATIONS relations, MAX_HOPS deep, each once.

    A path may not come back to a table that it has been to, but for rows of one table that refer to each other
    (`parent.parent`). Raises ValidationFailed on the field `with`.
    """
    if text is None:
        return ()
    return _worded("with", text, table, sight, _withs, _read_with)


def _read_with(text: str, table: str, sight: Sight) -> tuple[With, ...]:
    paths = text.split(",", MAX_RELATIONS + 1)
    if len(paths) > MAX_RELATIONS:
        raise ValidationFailed.of("with", "too_many", f"At most {MAX_RELATIONS} relations.")
    tree: dict[Hop, Any] = {}
    for path in paths:
        branch = tree
        for hop in _with_hops(path.strip(), table, sight):
            branch = branch.setdefault(hop, {})
    found = _grown(tree)
    if sum(1 for _ in _walk_with(found)) > MAX_RELATIONS:
        raise ValidationFailed.of("with", "too_many", f"At most {MAX_RELATIONS} relations.")
    return found


def _with_hops(path: str, table: str, sight: Sight) -> Iterator[Hop]:
    steps = path.split(".", MAX_HOPS + 1)
    visited = {table}
    for number, step in enumerate(steps):
        hop = sight.relation(table, step)
        if hop is None:
            if (column := sight.column(table, f"{step}_id")) is not None and column.type == "user":
                told = f"{shown(path)}: users are not rows and cannot be embedded; {column.name} has the id."
                raise ValidationFailed.of("with", "unknown", told)
            known = [name for name in sight.names(table) if sight.relation(table, name)]
            slip = did_you_mean(step, known) or "."
            raise ValidationFailed.of("with", "unknown", f"{shown(path)}: there is no such relation{slip}")
        if number == MAX_HOPS:
            raise ValidationFailed.of("with", "too_deep", f"{shown(path)}: relations nest {MAX_HOPS} deep at most.")
        if hop.table in visited and hop.table != table:
            raise ValidationFailed.of("with", "cyclic", f"{shown(path)}: comes back to {hop.table}.")
        visited.add(hop.table)
        table = hop.table
        yield hop


def _grown(tree: Mapping[Hop, Any]) -> tuple[With, ...]:
    return tuple(With(hop, _grown(inside)) for hop, inside in tree.items())


def _walk_with(withs: tuple[With, ...]) -> Iterator[With]:
    for one in withs:
        yield one
        yield from _walk_with(one.inside)


# Columns


Hops = tuple[Hop, ...]
Chosen = Mapping[Hops, tuple[str, ...] | None]
"""What `columns` says: by the way to a row, empty for the row itself, which of its columns to show; None for all that
may be read. They stand in the table's order, so that every spelling of one choice is one statement."""

_choices: Final[Memo[tuple[int, str, str], Chosen]] = Memo(512)


def parse_columns(
    text: Any, table: str, sight: Sight, withs: tuple[With, ...]
) -> tuple[tuple[str, ...] | None, tuple[With, ...]]:
    """A caller's `columns`, or None for all: the columns to show of a row, and `withs` narrowed to those to show there.

    Names, `*` for all, and with `*` also `-name`, as in a rule's `columns`; each may stand behind the way to a relation
    that `withs` embeds (`list.name`, `list.*,-list.notes`). Of rows of which none is named all columns are shown; `id`
    always is. Raises ValidationFailed on the field `columns`.
    """
    if text is None:
        return None, withs
    chosen = _worded("columns", text, table, sight, _choices, _read_columns, MAX_COLUMNS_TEXT)
    if len(chosen) == 1 and () in chosen:
        return chosen[()], withs
    found: set[Hops] = {()}
    narrowed = _narrowed(withs, chosen, (), found)
    for hops in chosen:
        if hops not in found:
            way = ".".join(hop.relation for hop in hops)
            raise ValidationFailed.of("columns", "invalid", f'{way}: is not embedded: put it into "with", too.')
    return chosen.get(()), narrowed


def _narrowed(withs: tuple[With, ...], chosen: Chosen, way: Hops, found: set[Hops]) -> tuple[With, ...]:
    """The tree with what is chosen of each relation; the ways to all of them are added to `found`."""
    made = []
    for one in withs:
        here = (*way, one.hop)
        found.add(here)
        made.append(With(one.hop, _narrowed(one.inside, chosen, here, found), chosen.get(here)))
    return tuple(made)


def _read_columns(text: str, table: str, sight: Sight) -> Chosen:
    texts = text.split(",", MAX_CHOSEN + 1)
    if len(texts) > MAX_CHOSEN:
        raise ValidationFailed.of("columns", "too_many", f"At most {MAX_CHOSEN} names.")
    tables: dict[Hops, str] = {}
    named: dict[Hops, set[str]] = {}
    denied: dict[Hops, dict[str, str]] = {}
    for pattern in map(str.strip, texts):
        hops, far, name = _chosen(pattern, table, sight)
        tables[hops] = far
        if pattern.startswith("-"):
            denied.setdefault(hops, {})[name] = pattern
        else:
            named.setdefault(hops, set()).add(name)
    chosen: dict[Hops, tuple[str, ...] | None] = {}
    for hops, far in tables.items():
        names, without = named.get(hops, set()), denied.get(hops, {})
        if without and "*" not in names:
            message = f'{shown(next(iter(without.values())))}: takes away from nothing: put "*" beside it.'
            raise ValidationFailed.of("columns", "invalid", message)
        known = [name for name in sight.names(far) if sight.column(far, name)]
        kept = [name for name in known if name == ID.name or (name in names or "*" in names) and name not in without]
        chosen[hops] = None if kept == known else tuple(kept)
    return chosen


def _chosen(pattern: str, table: str, sight: Sight) -> tuple[Hops, str, str]:
    """The way to the rows that one name of `columns` is about, their table, and the name of their column, or `*`."""
    *steps, name = pattern.removeprefix("-").split(".", MAX_HOPS + 1)
    hops: list[Hop] = []
    for step in steps:
        hop = sight.relation(table, step) if len(hops) < MAX_HOPS else None
        if hop is None:
            raise _unknown_column(pattern, step, [one for one in sight.names(table) if sight.relation(table, one)])
        hops.append(hop)
        table = hop.table
    if name == "*" and not pattern.startswith("-"):
        return tuple(hops), table, name
    if sight.column(table, name) is None:
        if sight.relation(table, name) is not None:
            message = f'{shown(pattern)}: is a relation: "with" embeds it, and behind it stands a column ({name}.id).'
            raise ValidationFailed.of("columns", "invalid", message)
        raise _unknown_column(pattern, name, [one for one in sight.names(table) if sight.column(table, one)])
    if name == ID.name and pattern.startswith("-"):
        raise ValidationFailed.of("columns", "invalid", f"{shown(pattern)}: the id is always there.")
    return tuple(hops), table, name


def _unknown_column(pattern: str, word: str, known: Iterable[str]) -> ValidationFailed:
    slip = did_you_mean(word, known) or "."
    return ValidationFailed.of("columns", "unknown", f"{shown(pattern)}: there is no such column{slip}")
