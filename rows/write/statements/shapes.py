"""What the statements are compiled for (their shapes) and the keys of their parameters. Several statements may be
compiled for one shape: a write of several rows, and its probes, for that of the write."""

from dataclasses import dataclass
from typing import Final, Literal

from rows.rules.conditions import Condition
from rows.write.update_operators import Operator

Action = Literal["update", "delete"]
ETAGS: Final = "etags"
EVENT_ID: Final = "event"
REQUEST: Final = "request"
DEPTH: Final = "depth"


@dataclass(frozen=True, slots=True)
class InsertShape:
    """`stamped` are the columns that were not sent and whose default is the moment."""

    table: str
    stamped: tuple[str, ...] = ()
    events: bool = False


@dataclass(frozen=True, slots=True)
class UpdateShape:
    """`columns` are those sent, sorted; `matches` says that there is an If-Match, `large` that the new cells may have
    more than `sizes.LARGE_WRITE`, so that the row's size must be looked at. `update_operators` are those of the
    columns, sorted, whose new cells an operator makes of the old ones."""

    table: str
    columns: tuple[str, ...]
    matches: bool = False
    events: bool = False
    large: bool = False
    computed: tuple[tuple[str, Operator], ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteShape:
    table: str
    matches: bool = False
    events: bool = False


WriteShape = InsertShape | UpdateShape | DeleteShape


@dataclass(frozen=True, slots=True)
class ReleaseShape:
    """A referential action: given rows let go of what `column` refers to. No rule is asked."""

    table: str
    column: str
    events: bool


@dataclass(frozen=True, slots=True)
class DeleteWithEventsShape:
    """A referential action: given rows of several tables go at once. `parts` are the tables, and for each whether
    events are recorded. No rule is asked."""

    parts: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class LockShape:
    """The row that an update or delete may take, locked, with the text of `cells`."""

    write: UpdateShape | DeleteShape
    cells: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChosenShape:
    """The rows that an `action` on many may take and that fit `where`, in the order of their ids, locked, at most
    LIMIT. `after`: only those behind an id."""

    table: str
    action: Action
    where: Condition
    after: bool


@dataclass(frozen=True, slots=True)
class ChildrenShape:
    """Which rows of `table` refer to given rows by `column`; locked, at most `most`."""

    table: str
    column: str
    most: int


@dataclass(frozen=True, slots=True)
class OldCell:
    """What a column's value was before the write."""

    column: str


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids (text[]) of the rows of part `number` of a referential action."""

    number: int = 0


@dataclass(frozen=True, slots=True)
class EventIds:
    """As many fresh event ids (text[]) as part `number` has rows."""

    number: int = 0
