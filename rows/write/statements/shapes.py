"""What the statements are compiled for (their shapes) and the keys of their parameters. Several statements may be
compiled for one shape: a write of several rows, and its probes, for that of the write."""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from rows.rules.conditions import Condition
from rows.write.update_operators import Operator

Action = Literal["update", "delete"]
ETAGS: Final = "etags"
EVENT_ID: Final = "event"
REQUEST: Final = "request"
DEPTH: Final = "depth"


@dataclass(frozen=True, slots=True)
class InsertShape:
    """`stamped` are the columns that were not sent and whose default is the current time."""

    action: ClassVar[Literal["insert"]] = "insert"
    table: str
    stamped: tuple[str, ...] = ()
    events: bool = False


@dataclass(frozen=True, slots=True)
class UpdateShape:
    """`columns` are the sent ones, sorted. `matches`: there is an If-Match. `large`: the new cells may have more than
    `row_size.LARGE_WRITE`, so the row's size must be checked. `computed`: the columns whose new cells an operator
    computes from the old ones, sorted."""

    action: ClassVar[Action] = "update"
    table: str
    columns: tuple[str, ...]
    matches: bool = False
    events: bool = False
    large: bool = False
    computed: tuple[tuple[str, Operator], ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteShape:
    action: ClassVar[Action] = "delete"
    table: str
    matches: bool = False
    events: bool = False


WriteShape = InsertShape | UpdateShape | DeleteShape


@dataclass(frozen=True, slots=True)
class DetachShape:
    """A referential action: sets `column` of given rows to null, without rules."""

    table: str
    column: str
    events: bool


@dataclass(frozen=True, slots=True)
class DeleteWithEventsShape:
    """A referential action: deletes given rows of several tables at once, without rules. `parts` are the tables, and
    for each whether events are recorded."""

    parts: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class LockShape:
    """Locks the row of an update or delete, and returns `cells` as text."""

    write: UpdateShape | DeleteShape
    cells: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChosenShape:
    """Locks the rows that a bulk `action` may change and that match `where`, in the order of their ids, at most LIMIT.
    `after`: only those with an id greater than the cursor's."""

    table: str
    action: Action
    where: Condition
    after: bool


@dataclass(frozen=True, slots=True)
class ChildrenShape:
    """Locks at most `most` rows of `table` whose `column` refers to given rows."""

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
