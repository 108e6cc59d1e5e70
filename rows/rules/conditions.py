"""Condition trees: the common form of filters, rules and webhook filters, built by `grammar` and `rules`, compiled by
`rows.query.sql.conditions`, evaluated by `evaluator`. Values are bound by number (`Slot`), so a tree is hashable and
the cache key of its statement.

**Two-valued.** A leaf over a null cell is false, and `Not` is its exact opposite: `Not(Compare(priority, "gt", 3))`
holds for a row without a priority. In SQL: `L IS TRUE`, `L IS NOT TRUE`. A path through an absent or unreadable row is
null.

**Normal form.** `Not` only occurs above a leaf, `$every` is `none` of the negation, and `TRUE` and `FALSE` only occur
alone or in a quantified condition: `all_of`, `any_of` and `negate` preserve it."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar, Final, Literal, TypeAlias

from rows.schema.model import Hop
from rows.schema.types import Type

Operator = Literal["eq", "lt", "lte", "gt", "gte", "in", "like", "ilike", "has_any", "has_all", "encloses"]
"""What a leaf does with its cell `c` and operand `v`, in SQL: `c = v`, `c < v`, … (timestamps as instants, text by code
point), `c = ANY(v)` (an array without nulls), `c LIKE v`, `c ILIKE v` (a complete, escaped pattern), `c && v`, `c @> v`
of text[] (`?|` and `?&` of json), and `c @> v` of json."""

Form = Literal["plain", "one", "like", "exact", "contains", "starts_with", "ends_with", "words"]
"""How a value becomes its operand: unchanged, as a list of one, as a pattern, escaped, or split into words."""


class _Hashed:
    """Caches its hash: trees are dictionary keys on the hot path."""

    __slots__ = ("_hash",)
    _contents: "ClassVar[Callable[[Any], Any]]"
    _hash: int

    def __init_subclass__(cls) -> None:
        cls.__hash__ = _Hashed.__hash__  # type: ignore[method-assign]  # a dataclass would make its own

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            kind = type(self)
            value = hash((kind.__name__, kind._contents(self)))
            object.__setattr__(self, "_hash", value)
            return value


@dataclass(frozen=True, slots=True)
class Path(_Hashed):
    """The cell `column` (stored name, `list_id`), `hops` to-one steps away."""

    hops: tuple[Hop, ...]
    column: str


@dataclass(frozen=True, slots=True)
class Slot:
    """Value `index` of the filter, bound as `type`."""

    index: int
    type: Type


OLD: Final = "old."


@dataclass(frozen=True, slots=True)
class Variable:
    """A rule's variable (`user.id`, `now`, `old.status` before the write), bound per request by `principal.bind`; None
    if missing, null, empty or of another type. Its leaf is accompanied by `Present`."""

    name: str
    type: Type
    form: Form = "plain"


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal of the schema document; `value` is its Python form, ignored in equality."""

    wire: bytes
    type: Type
    value: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.wire == other.wire and self.type == other.type

    def __hash__(self) -> int:
        return hash((self.wire, self.type))


@dataclass(frozen=True, slots=True)
class OtherCell:
    column: str
    type: Type


Operand: TypeAlias = Slot | Variable | Constant | OtherCell


@dataclass(frozen=True, slots=True)
class Always(_Hashed):
    holds: bool


TRUE: Final = Always(True)
FALSE: Final = Always(False)


@dataclass(frozen=True, slots=True)
class Compare(_Hashed):
    path: Path
    operator: Operator
    operand: Operand
    needs: tuple[Variable, ...] = ()
    """Other variables that must be present (the other bound of `$between`), for `guarded`."""


@dataclass(frozen=True, slots=True)
class IsNull(_Hashed):
    path: Path


@dataclass(frozen=True, slots=True)
class Search(_Hashed):
    r"""Each word occurs in at least one of the cells, letter case apart.

    `paths` (at least one) share their hops. `operand` is a `text[]` of finished patterns (`%word%`). Words hold no
    white space, so with the cells joined by a control character it is `concat_ws(E'\x1f', …) ILIKE ALL (operand)`."""

    paths: tuple[Path, ...]
    operand: Operand


@dataclass(frozen=True, slots=True)
class Present(_Hashed):
    """A variable has a value (an old array cell: not empty). Rules only."""

    variable: Variable


@dataclass(frozen=True, slots=True)
class Not(_Hashed):
    condition: "Leaf"


@dataclass(frozen=True, slots=True)
class And(_Hashed):
    conditions: tuple["Condition", ...]


@dataclass(frozen=True, slots=True)
class Or(_Hashed):
    conditions: tuple["Condition", ...]


@dataclass(frozen=True, slots=True)
class Quantified(_Hashed):
    """`some` or `none` of the rows of `hop` meet `condition`."""

    kind: Literal["some", "none"]
    hop: Hop
    condition: "Condition"


for _node in (Path, Always, Compare, IsNull, Search, Present, Not, And, Or, Quantified):
    _node._contents = attrgetter(*_node.__match_args__)

Leaf: TypeAlias = Compare | IsNull | Search
Condition: TypeAlias = Leaf | Present | Not | And | Or | Quantified | Always


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition's shape and the values of its slots: `wire[i]` is PostgreSQL's text, `values[i]` the Python value for
    `evaluator` (int, Decimal, float, bool, str, date, datetime in UTC, parsed JSON, or a tuple)."""

    shape: Condition = TRUE
    wire: tuple[bytes, ...] = ()
    values: tuple[Any, ...] = ()


NO_FILTER: Final = Filter()


def all_of(conditions: Iterable[Condition]) -> Condition:
    return _join(And, TRUE, FALSE, conditions)


def any_of(conditions: Iterable[Condition]) -> Condition:
    return _join(Or, FALSE, TRUE, conditions)


def _join(kind: type[And] | type[Or], neutral: Always, absorbing: Always, conditions: Iterable[Condition]) -> Condition:
    flat: dict[Condition, None] = {}
    for condition in conditions:
        found = type(condition)
        if found is Always:
            if condition == absorbing:
                return absorbing
        elif found is kind:
            flat.update(dict.fromkeys(condition.conditions))  # type: ignore[union-attr]
        else:
            flat[condition] = None
    if len(flat) < 2:
        return next(iter(flat), neutral)
    return kind(tuple(flat))


def negate(condition: Condition) -> Condition:
    """The opposite, in normal form. Raises TypeError for a guarded rule."""
    match condition:
        case Always():
            return FALSE if condition.holds else TRUE
        case Compare() | IsNull() | Search():
            return Not(condition)
        case Not():
            return condition.condition
        case And():
            return any_of(map(negate, condition.conditions))
        case Or():
            return all_of(map(negate, condition.conditions))
        case Quantified():
            return Quantified("none" if condition.kind == "some" else "some", condition.hop, condition.condition)
        case Present():
            raise TypeError("a guard cannot be negated: its variable must be present either way")


def parts(condition: Condition) -> Iterator[Leaf | Present | Always | Quantified]:
    """The parts of And, Or and Not, in order; quantified conditions unopened."""
    match condition:
        case And() | Or():
            for part in condition.conditions:
                yield from parts(part)
        case Not():
            yield condition.condition
        case _:
            yield condition


def paths_of(part: Condition) -> tuple[Path, ...]:
    match part:
        case Compare(path=path, operand=OtherCell(column=column)):
            return (path, Path(path.hops, column))
        case Compare() | IsNull():
            return (part.path,)
        case Search():
            return part.paths
        case _:
            return ()


def reads(condition: Condition, table: str) -> Iterator[tuple[str, Hop | str]]:
    """Each hop and column that a condition on `table` reads, with the table where it is."""
    for part in parts(condition):
        if isinstance(part, Quantified):
            yield table, part.hop
            yield from reads(part.condition, part.hop.table)
        for path in paths_of(part):
            at = table
            for hop in path.hops:
                yield at, hop
                at = hop.table
            yield at, path.column


def hops_of(condition: Condition) -> Iterator[Hop]:
    return (step for _, step in reads(condition, "") if isinstance(step, Hop))


def with_leaves(condition: Condition, changed: "Callable[[Leaf], Leaf]") -> Condition:
    match condition:
        case Compare() | IsNull() | Search():
            return changed(condition)
        case Not(leaf):
            return Not(changed(leaf))
        case And() | Or():
            return replace(condition, conditions=tuple(with_leaves(part, changed) for part in condition.conditions))
        case Quantified():
            return replace(condition, condition=with_leaves(condition.condition, changed))
        case Present() | Always():
            return condition


def leaves(condition: Condition) -> Iterator[Leaf | Present]:
    for part in parts(condition):
        match part:
            case Quantified():
                yield from leaves(part.condition)
            case Always():
                pass
            case _:
                yield part


def operands(condition: Condition) -> Iterator[Operand]:
    for leaf in leaves(condition):
        match leaf:
            case Compare():
                yield leaf.operand
                yield from leaf.needs
            case Search():
                yield leaf.operand
            case Present():
                yield leaf.variable


def guarded(condition: Condition) -> Condition:
    """A rule's condition with guards: a leaf with a missing operand is false, negated or not. Under `none` that would
    widen the rule, so the whole quantified clause is false."""
    match condition:
        case Compare() | Search() | Not():
            return _present(operands(condition), condition)
        case And():
            return all_of(map(guarded, condition.conditions))
        case Or():
            return any_of(map(guarded, condition.conditions))
        case Quantified(kind="some"):
            return Quantified("some", condition.hop, guarded(condition.condition))
        case Quantified():
            return _present(operands(condition.condition), condition)
        case IsNull() | Present() | Always():
            return condition


def _present(found: Iterable[Operand], condition: Condition) -> Condition:
    needed: list[Condition] = []
    for operand in found:
        if isinstance(operand, Variable):
            needed.append(Present(operand))
        elif isinstance(operand, Constant) and operand.value == ():
            return FALSE  # the empty list of `$in`, `$nin`, `$hasAny`, `$hasAll`
    return all_of([*needed, condition])
