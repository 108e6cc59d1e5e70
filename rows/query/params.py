"""Parses `order` (`due_on.desc.nullslast,priority`), `with` (`list,comments.author`) and `columns` (`title,list.name`).
Names go through a `NameResolver` and everything is bounded, as in `rows.rules.grammar`. docs/reference/filters.md."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from platform_site.concurrency.memo import Memo
from platform_site.http.errors import ValidationFailed
from rows.rules.conditions import Path
from rows.rules.grammar import MAX_HOPS
from rows.rules.name_resolver import NameResolver, shown, user_column
from rows.schema.identifiers import did_you_mean
from rows.schema.model import ID, SQL_TYPES, UNORDERED_TYPES, Hop
from rows.schema.types import Type

MAX_ORDER: Final = 3
MAX_RELATIONS: Final = 10
MAX_CHOSEN: Final = 100
"""Half of a table's maximum: the other half can be excluded by name."""
MAX_COLUMNS_TEXT: Final = 4_000
_MAX_TEXT: Final = 1_000


@dataclass(frozen=True, slots=True)
class OrderKey:
    """`type` is the cursor value's operand type; `null`: whether it may be null."""

    path: Path
    type: Type
    descending: bool = False
    nulls_first: bool = False
    null: bool = False


ID_KEY: Final = OrderKey(Path((), "id"), "text")
DEFAULT_ORDER: Final = (ID_KEY,)

Made = TypeVar("Made")
_parsed: Final[Memo[tuple[str, int, str, str], Any]] = Memo(1_024)


def refusal(field: str, name: str, code: str, message: str) -> ValidationFailed:
    return ValidationFailed.of(field, code, f"{shown(name)}: {message}")


def _parse_cached(
    field: str,
    text: Any,
    table: str,
    resolver: NameResolver,
    parse: Callable[[str, str, NameResolver], Made],
    max_length: int = _MAX_TEXT,
) -> Made:
    """Raises ValidationFailed on `field`."""
    if not isinstance(text, str):
        raise ValidationFailed.of(field, "wrong_type", "Must be a string.")
    if len(text) > max_length:
        raise ValidationFailed.of(field, "too_long", f"Must have at most {max_length} characters.")
    key = (field, resolver.token, table, text)
    found: Made | None = _parsed.get(key)
    if found is None:
        if not all(map(str.strip, text.split(","))):
            message = f'A name is empty. Separate names by single commas, or omit "{field}".'
            raise ValidationFailed.of(field, "unknown", message)
        found = parse(text, table, resolver)
        _parsed.put(key, found)
    return found


def parse_order(order: Any, table: str, resolver: NameResolver) -> tuple[OrderKey, ...]:
    """At most MAX_ORDER keys, made total by `id`. Raises ValidationFailed on `order`."""
    if order is None:
        return DEFAULT_ORDER
    return _parse_cached("order", order, table, resolver, _read_order)


def _read_order(order: str, table: str, resolver: NameResolver) -> tuple[OrderKey, ...]:
    keys = order_keys(order, table, resolver)
    for number, key in enumerate(keys, 1):
        if key.path == ID_KEY.path:
            return tuple(keys[:number])  # nothing after a unique column can matter
    last = keys[-1]
    return (*keys, OrderKey(ID_KEY.path, "text", last.descending, last.descending))


def order_keys(order: str, table: str, resolver: NameResolver) -> list[OrderKey]:
    """As written, at most MAX_ORDER. Raises ValidationFailed on `order`."""
    texts = order.split(",", MAX_ORDER + 1)
    if len(texts) > MAX_ORDER:
        raise ValidationFailed.of("order", "too_many", f"At most {MAX_ORDER} names.")
    keys: list[OrderKey] = []
    for text in map(str.strip, texts):
        key = order_key(text, table, resolver)
        if any(key.path == other.path for other in keys):
            raise refusal("order", text, "invalid", "appears twice.")
        keys.append(key)
    return keys


def order_key(text: str, table: str, resolver: NameResolver) -> OrderKey:
    """Such as `due_on.desc.nullslast`. Raises ValidationFailed on `order`."""
    parts = text.split(".", MAX_HOPS + 3)
    nulls = parts.pop() if len(parts) > 1 and parts[-1] in ("nullsfirst", "nullslast") else None
    direction = parts.pop() if len(parts) > 1 and parts[-1] in ("asc", "desc") else "asc"
    hops: list[Hop] = []
    *steps, name = parts
    for step in steps:
        hop = resolver.relation(table, step)
        if hop is None or hop.many or len(hops) == MAX_HOPS:
            if hop is None and (user := user_column(table, step, resolver)):
                message = f"rows cannot be ordered by fields of users, only by {user}."
                raise refusal("order", text, "unknown", message)
            if hop is None and resolver.column(table, step) is not None:
                message = "a column is followed by asc or desc, then nullsfirst or nullslast."
                raise refusal("order", text, "invalid", message)
            raise _unknown_order(text, step, () if hop else resolver.names(table))
        hops.append(hop)
        table = hop.table
    column = resolver.column(table, name)
    if column is None:
        raise _unknown_order(text, name, resolver.columns(table))
    if column.type in UNORDERED_TYPES:
        raise refusal("order", text, "invalid", f"a {column.type} column has no order.")
    descending = direction == "desc"
    null = column.null or bool(hops)
    # A column that is never null sorts alike either way: one spelling, one statement, one index.
    nulls_first = nulls == "nullsfirst" if nulls and null else descending
    return OrderKey(Path(tuple(hops), name), SQL_TYPES[column.type], descending, nulls_first, null)


def _unknown_order(text: str, word: str, known: Iterable[str]) -> ValidationFailed:
    form = "Write column.asc or column.desc, optionally followed by .nullsfirst or .nullslast."
    return refusal("order", text, "unknown", f"there is no such column{did_you_mean(word, known) or '.'} {form}")


@dataclass(frozen=True, slots=True)
class With:
    hop: Hop
    inside: "tuple[With | WithUser, ...]" = ()
    columns: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return self.hop.relation


@dataclass(frozen=True, slots=True)
class WithUser:
    name: str
    column: str


Withs = tuple[With | WithUser, ...]


def parse_with(text: Any, table: str, resolver: NameResolver) -> Withs:
    """At most MAX_RELATIONS relations and users, MAX_HOPS deep. A path may not return to a table, except by
    self-references (`parent.parent`). Raises ValidationFailed on `with`."""
    if text is None:
        return ()
    return _parse_cached("with", text, table, resolver, _read_with)


def _read_with(text: str, table: str, resolver: NameResolver) -> Withs:
    paths = text.split(",", MAX_RELATIONS + 1)
    if len(paths) > MAX_RELATIONS:
        raise ValidationFailed.of("with", "too_many", f"At most {MAX_RELATIONS} relations.")
    tree: dict[Hop | WithUser, Any] = {}
    for path in paths:
        branch = tree
        for hop in _with_hops(path.strip(), table, resolver):
            branch = branch.setdefault(hop, {})
    found = _to_withs(tree)
    if _count(found) > MAX_RELATIONS:
        raise ValidationFailed.of("with", "too_many", f"At most {MAX_RELATIONS} relations.")
    return found


def _with_hops(path: str, table: str, resolver: NameResolver) -> Iterator[Hop | WithUser]:
    steps = path.split(".", MAX_HOPS + 1)
    visited = {table}
    for number, step in enumerate(steps):
        hop = resolver.relation(table, step)
        user = None if hop else user_column(table, step, resolver)
        if hop is None and user is None:
            users = [one.key for one in resolver.columns(table).values() if one.is_user and resolver.user_fields]
            suggestion = did_you_mean(step, [*users, *resolver.relations(table)]) or "."
            raise refusal("with", path, "unknown", f"there is no such relation{suggestion}")
        if number == MAX_HOPS:
            raise refusal("with", path, "too_deep", f"relations nest {MAX_HOPS} deep at most.")
        if hop is None:
            if not resolver.user_fields:
                message = 'your role may not read any field of users. "users" in the schema document allows fields.'
                raise refusal("with", path, "unknown", message)
            if number < len(steps) - 1:
                raise refusal("with", path, "unknown", f"{step} is a user, which has no relations.")
            yield WithUser(step, f"{step}_id")
            return
        if hop.table in visited and hop.table != table:
            raise refusal("with", path, "cyclic", f"returns to {hop.table}.")
        visited.add(hop.table)
        table = hop.table
        yield hop


def _to_withs(tree: Mapping[Hop | WithUser, Any]) -> Withs:
    return tuple(one if isinstance(one, WithUser) else With(one, _to_withs(inside)) for one, inside in tree.items())


def _count(withs: Withs) -> int:
    return sum(1 + (_count(one.inside) if isinstance(one, With) else 0) for one in withs)


Hops = tuple[Hop, ...]
Chosen = Mapping[Hops, tuple[str, ...] | None]
"""By path to a row (empty for the row itself), the columns to show, in the table's order; None for all."""


def parse_columns(text: Any, table: str, resolver: NameResolver, withs: Withs) -> tuple[tuple[str, ...] | None, Withs]:
    """The columns of a row, and `withs` narrowed. `text`: names, `*`, and with `*` also `-name`, each with the path of
    an embedded relation (`list.*,-list.notes`). Unnamed rows show all columns. Raises ValidationFailed on `columns`."""
    if text is None:
        return None, withs
    chosen = _parse_cached("columns", text, table, resolver, _read_columns, MAX_COLUMNS_TEXT)
    if len(chosen) == 1 and () in chosen:
        return chosen[()], withs
    found: set[Hops] = {()}
    narrowed = _with_columns(withs, chosen, (), found)
    for hops in chosen:
        if hops not in found:
            path = ".".join(hop.relation for hop in hops)
            raise ValidationFailed.of("columns", "invalid", f'{path}: is not embedded: add it to "with".')
    return chosen.get(()), narrowed


def _with_columns(withs: Withs, chosen: Chosen, path: Hops, found: set[Hops]) -> Withs:
    """Adds all paths to `found`."""
    made: list[With | WithUser] = []
    for one in withs:
        if isinstance(one, WithUser):
            made.append(one)
            continue
        here = (*path, one.hop)
        found.add(here)
        made.append(With(one.hop, _with_columns(one.inside, chosen, here, found), chosen.get(here)))
    return tuple(made)


def _read_columns(text: str, table: str, resolver: NameResolver) -> Chosen:
    texts = text.split(",", MAX_CHOSEN + 1)
    if len(texts) > MAX_CHOSEN:
        raise ValidationFailed.of("columns", "too_many", f"At most {MAX_CHOSEN} names.")
    tables: dict[Hops, str] = {}
    named: dict[Hops, set[str]] = {}
    denied: dict[Hops, dict[str, str]] = {}
    for pattern in map(str.strip, texts):
        hops, far, name = _chosen(pattern, table, resolver)
        tables[hops] = far
        if pattern.startswith("-"):
            denied.setdefault(hops, {})[name] = pattern
        else:
            named.setdefault(hops, set()).add(name)
    chosen: dict[Hops, tuple[str, ...] | None] = {}
    for hops, far in tables.items():
        names, without = named.get(hops, set()), denied.get(hops, {})
        if without and "*" not in names:
            raise refusal("columns", next(iter(without.values())), "invalid", 'an exclusion needs "*" beside it.')
        known = list(resolver.columns(far))
        kept = [name for name in known if name == ID.name or (name in names or "*" in names) and name not in without]
        chosen[hops] = None if kept == known else tuple(kept)
    return chosen


def _chosen(pattern: str, table: str, resolver: NameResolver) -> tuple[Hops, str, str]:
    """The path, table, and column or `*` of one name."""
    *steps, name = pattern.removeprefix("-").split(".", MAX_HOPS + 1)
    hops: list[Hop] = []
    for step in steps:
        hop = resolver.relation(table, step) if len(hops) < MAX_HOPS else None
        if hop is None and user_column(table, step, resolver):
            message = 'the fields of a user are chosen by "users" of the schema document.'
            raise refusal("columns", pattern, "invalid", message)
        if hop is None:
            raise _unknown_column(pattern, step, resolver.relations(table))
        hops.append(hop)
        table = hop.table
    if name == "*" and not pattern.startswith("-"):
        return tuple(hops), table, name
    if resolver.column(table, name) is None:
        if user_column(table, name, resolver):
            message = f'is a user: its id is {name}_id, and "with" embeds it.'
            raise refusal("columns", pattern, "invalid", message)
        if resolver.relation(table, name) is not None:
            message = f'is a relation: "with" embeds it whole. Leave it out here, or choose its columns ({name}.id).'
            raise refusal("columns", pattern, "invalid", message)
        raise _unknown_column(pattern, name, resolver.columns(table))
    if name == ID.name and pattern.startswith("-"):
        raise refusal("columns", pattern, "invalid", "the id cannot be excluded.")
    return tuple(hops), table, name


def _unknown_column(pattern: str, word: str, known: Iterable[str]) -> ValidationFailed:
    return refusal("columns", pattern, "unknown", f"there is no such column{did_you_mean(word, known) or '.'}")
