"""The parsed schema document: all of `rows` reads these immutable classes and never the JSON.
docs/reference/schema.md."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from platform_site.http.errors import FieldError
from rows.schema.types import Type
from rows.schema.user_fields import UserFields

ColumnType = Literal[
    "text",
    "integer",
    "decimal",
    "float",
    "boolean",
    "date",
    "timestamp",
    "uuid",
    "json",
    "text[]",
    "enum",
    "reference",
    "user",
]
Action = Literal["read", "insert", "update", "delete"]
OnDelete = Literal["cascade", "restrict", "null"]
OnUserDelete = Literal["keep", "null", "delete"]

ACTIONS: Final[tuple[Action, ...]] = ("read", "insert", "update", "delete")
SQL_TYPES: Final[Mapping[ColumnType, Type]] = MappingProxyType(
    {
        "text": "text",
        "integer": "bigint",
        "decimal": "numeric",
        "float": "float8",
        "boolean": "boolean",
        "date": "date",
        "timestamp": "timestamptz",
        "uuid": "uuid",
        "json": "jsonb",
        "text[]": "text[]",
        "enum": "text",
        "reference": "text",
        "user": "text",
    }
)
"""By column type, for casts of values. A cast with a length would truncate."""
UNORDERED_TYPES: Final = frozenset[ColumnType]({"json", "text[]"})
"""Their columns are in no order, index, unique or group."""
DEFAULT_ID_PREFIX: Final = "row_"
NOW: Final = "$now"
RANDOM: Final = "$uuid"


class InvalidDocument(Exception):
    """`errors` has all errors, each with its path such as `tables.tasks.columns.owner.to`."""

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors = list(errors)
        super().__init__("; ".join(f"{error.field}: {error.message}" for error in self.errors))


MAX_ERRORS: Final = 100
"""Of one response: each costs time for a suggestion."""


class Errors(list[FieldError]):
    """Raises InvalidDocument at MAX_ERRORS."""

    def append(self, error: FieldError) -> None:
        super().append(error)
        if len(self) >= MAX_ERRORS:
            more = FieldError("tables", "too_many", f"may have more errors: these are the first {MAX_ERRORS}")
            raise InvalidDocument([*self, more])


@dataclass(frozen=True, slots=True)
class Column:
    """`name` is used in PostgreSQL and rows (`list_id`), `key` in the document (`list`); they differ for references and
    users. `default` is JSON (None: none), `NOW` or `RANDOM`."""

    name: str
    key: str
    type: ColumnType
    null: bool = False
    default: Any = None
    max_length: int | None = None
    min_length: int | None = None
    format: str | None = None
    min: Any = None
    max: Any = None
    precision: int | None = None
    """All digits of a decimal; `scale` after the point."""
    scale: int | None = None
    values: tuple[str, ...] = ()
    references: str | None = None
    on_delete: OnDelete | None = None
    related_name: str | None = None
    on_user_delete: OnUserDelete | None = None
    renamed_from: str | None = None
    """The previous key or name; not stored."""
    backfill: Any = None
    """The value for existing rows; not stored."""
    implicit: bool = False

    @property
    def is_user(self) -> bool:
        return self.type == "user"

    @property
    def is_reference(self) -> bool:
        return self.type == "reference"


ID: Final = Column("id", "id", "text", max_length=64, implicit=True)
CREATED_AT: Final = Column("created_at", "created_at", "timestamp", default=NOW, implicit=True)
UPDATED_AT: Final = Column("updated_at", "updated_at", "timestamp", default=NOW, implicit=True)
IMPLICIT: Final = (ID, CREATED_AT, UPDATED_AT)


@dataclass(frozen=True, slots=True)
class Hop:
    """A step to related rows. To one: the row of `table` whose `id` is this row's `column`. To many: the rows of
    `table` whose `column` is this row's `id`. `relation` is its public name: the reference's key; to many, the
    name of the other table, or `related_name`."""

    relation: str
    table: str
    column: str
    many: bool = False


@dataclass(frozen=True, slots=True)
class IndexKey:
    column: str
    descending: bool = False
    nulls_first: bool = False

    def __str__(self) -> str:
        nulls = "" if self.nulls_first == self.descending else (".nullsfirst" if self.nulls_first else ".nullslast")
        return f"{'-' if self.descending else ''}{self.column}{nulls}"


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """A btree index. `keys` end in `id`, in the direction of the key before, so that a page is an index range."""

    keys: tuple[IndexKey, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.keys))


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """A rule of checked shape; `rows.rules.rules` resolves its names. `where` and `check` None: no condition. `columns`
    None: all. `set` maps columns to forced values."""

    where: Mapping[str, Any] | None = None
    check: Mapping[str, Any] | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None


Rules = Mapping[str, Mapping[Action, tuple[RuleSpec, ...]]]
"""Role → action → rules; only `read` may have several."""


@dataclass(frozen=True, slots=True)
class Table:
    """`columns` are declared, by name; `all_columns` adds `id` and the timestamps. `indexes`: declared ones, then one
    for each other reference and user column."""

    name: str
    columns: Mapping[str, Column]
    relations: Mapping[str, Hop] = field(default_factory=dict)
    unique: tuple[tuple[str, ...], ...] = ()
    indexes: tuple[IndexSpec, ...] = ()
    rules: Rules = field(default_factory=dict)
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    id_prefix: str = DEFAULT_ID_PREFIX
    renamed_from: str | None = None
    all_columns: Mapping[str, Column] = field(init=False, compare=False, repr=False)
    user_columns: tuple[str, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "user_columns", tuple(c.name for c in self.columns.values() if c.is_user))
        whole = {ID.name: ID, **self.columns, CREATED_AT.name: CREATED_AT, UPDATED_AT.name: UPDATED_AT}
        object.__setattr__(self, "all_columns", MappingProxyType(whole))

    def column(self, name: str) -> Column | None:
        """By name or key (`list_id` or `list`)."""
        return self.all_columns.get(name) or next((c for c in self.columns.values() if c.key == name), None)


@dataclass(frozen=True, slots=True)
class Schema:
    """All tables of one version. `document` is the JSON as stored, without `renamed_from` and `backfill`."""

    tables: Mapping[str, Table]
    document: Mapping[str, Any] = field(compare=False, repr=False)
    users: UserFields = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Equal for documents that only differ in the order of keys."""
        return digest(self.document)


def digest(document: object) -> str:
    """SHA-256 of canonical JSON: sorted keys, no blanks, UTF-8."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


EMPTY: Final = Schema(tables=MappingProxyType({}), document={"tables": {}})
