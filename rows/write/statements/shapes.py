"""What writes are compiled for (their shapes) and the keys of their parameters."""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

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
    """`columns` are the sent ones, sorted. `matches`: there is an If-Match. `large`: the row's size must be checked.
    `computed`: the columns whose new cells an operator computes from the old ones, sorted."""

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
class OldCell:
    column: str


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids (text[]) of the rows of part `number` of a referential action."""

    number: int = 0


@dataclass(frozen=True, slots=True)
class EventIds:
    """As many fresh event ids (text[]) as part `number` has rows."""

    number: int = 0
