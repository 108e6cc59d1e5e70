"""The parsed schema document: immutable tables, columns, relations, indexes and rules. `rows.schema.parser.parse` makes
a `Schema` from a developer's JSON or raises `InvalidDocument` with every error at once. Everything else in `rows` (DDL,
dynamic models, rules, statements) reads these classes and never the JSON. Names that are unknown to a `Schema` do not
exist for any caller. docs/reference/schema.md has the format."""

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
"""The bare PostgreSQL type of each column type, to which values that are put in it or compared with it are cast. A cast
with a length would truncate."""
DEFAULT_ID_PREFIX: Final = "row_"
NOW: Final = "$now"
"""As the default of a date (today in UTC) or timestamp: the moment of the insert."""
RANDOM: Final = "$uuid"
"""As the default of a uuid: a random one for each row."""


class InvalidDocument(Exception):
    """The document cannot be a schema. `errors` has all that is wrong, each with its path such as
    `tables.tasks.columns.owner.to`."""

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors = list(errors)
        super().__init__("; ".join(f"{error.field}: {error.message}" for error in self.errors))


MAX_ERRORS: Final = 100
"""Maximum errors of one response. Each costs time to find a suggestion, and space in the response."""


class Errors(list[FieldError]):
    """The errors of one document as they are found. Raises InvalidDocument with the last that is named: what has more
    is not read to its end."""

    def append(self, error: FieldError) -> None:
        super().append(error)
        if len(self) >= MAX_ERRORS:
            more = FieldError("tables", "too_many", f"may have more errors: these are the first {MAX_ERRORS}")
            raise InvalidDocument([*self, more])


@dataclass(frozen=True, slots=True)
class Column:
    """One real column of a table. `name` is the column in PostgreSQL and in rows (`list_id`), `key` what the document
    calls it (`list`); they differ for references and users only. `default` is the document's JSON value (None: no
    default), or `NOW` or `RANDOM`."""

    name: str
    key: str
    type: ColumnType
    null: bool = False
    default: Any = None
    max_length: int | None = None
    """Characters, for text; None is unbounded."""
    min_length: int | None = None
    """Characters, for text."""
    format: str | None = None
    """A key of `rows.schema.formats.FORMATS`, for text."""
    min: Any = None
    """The least value of a number, date or timestamp, in Python's spelling (`rows.schema.values`); None: no limit."""
    max: Any = None
    precision: int | None = None
    """All digits of a decimal; `scale` are those after the point."""
    scale: int | None = None
    values: tuple[str, ...] = ()
    """What an enum may be, in the order of the document."""
    references: str | None = None
    """The table a reference points to."""
    on_delete: OnDelete | None = None
    """What deleting the row pointed to does to this one; set for references."""
    related_name: str | None = None
    """The to-many relation's name on the far table, where the document gives one."""
    on_user_delete: OnUserDelete | None = None
    """What deleting the user does to this row; set for user columns."""
    renamed_from: str | None = None
    """For the step to this document only: the key or name this column had before. Never stored."""
    backfill: Any = None
    """For the step to this document only: what existing rows get where they have no value. Never stored."""
    implicit: bool = False
    """`id`, `created_at`, `updated_at`: every table has them, no document declares them."""

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
class Relation:
    """A named way from one table to another. To-one (`many` false): `column` is this table's own column, which holds
    the far row's id. To-many: `column` is the far table's column, which holds this row's id. A to-many relation is
    named by the far table, or by the `related_name` of the reference, required where that name is taken (two references
    between the same tables, say)."""

    name: str
    column: str
    target: str
    many: bool


@dataclass(frozen=True, slots=True)
class IndexKey:
    column: str
    descending: bool = False
    nulls_first: bool = False

    def __str__(self) -> str:
        """As documents write it: `-due_on.nullslast`; where nulls go is left out where PostgreSQL would put them."""
        place = "" if self.nulls_first == self.descending else (".nullsfirst" if self.nulls_first else ".nullslast")
        return f"{'-' if self.descending else ''}{self.column}{place}"


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """A btree index. `keys` are complete: they end in `id`, in the direction of the key before, so that a page of rows
    in this order is a range of the index at any depth."""

    keys: tuple[IndexKey, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.keys))


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """One rule as written: its shape is checked, the names inside are resolved by `rows.rules.rules`. `where` and
    `check` None: not given, so nothing is asked (for `check` of an update see `rows.rules.rules`). `columns` None:
    every column. `set` maps columns to forced values."""

    where: Mapping[str, Any] | None = None
    check: Mapping[str, Any] | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None


Rules = Mapping[str, Mapping[Action, tuple[RuleSpec, ...]]]
"""Role → action → rules, of which only `read` may have several. A role that is named has no action that is not."""


@dataclass(frozen=True, slots=True)
class Table:
    """`columns` are the declared ones by name; `all_columns` has `id` before and the two timestamps after them.
    `relations` has the to-one and the to-many. `unique` are column names. `indexes` has the declared ones first, then
    one for each reference and user column that no declared one equals."""

    name: str
    columns: Mapping[str, Column]
    relations: Mapping[str, Relation] = field(default_factory=dict)
    unique: tuple[tuple[str, ...], ...] = ()
    indexes: tuple[IndexSpec, ...] = ()
    rules: Rules = field(default_factory=dict)
    conditions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Named conditions as written; `rows.rules.grammar` reads them where `$is` names one."""
    checks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Conditions about a row's own cells, as written; `rows.rules.checks` reads them."""
    id_prefix: str = DEFAULT_ID_PREFIX
    renamed_from: str | None = None
    """For the step to this document only: the table's name before. Never stored."""
    all_columns: Mapping[str, Column] = field(init=False, compare=False, repr=False)
    user_columns: tuple[str, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "user_columns", tuple(c.name for c in self.columns.values() if c.is_user))
        whole = {ID.name: ID, **self.columns, CREATED_AT.name: CREATED_AT, UPDATED_AT.name: UPDATED_AT}
        object.__setattr__(self, "all_columns", MappingProxyType(whole))

    def column(self, name: str) -> Column | None:
        """A column by its name or by its key (`list_id` or `list`), or None."""
        return self.all_columns.get(name) or next((c for c in self.columns.values() if c.key == name), None)


@dataclass(frozen=True, slots=True)
class Schema:
    """All tables of one environment at one version. `document` is the JSON as stored: what the developer wrote, without
    the words that only concern one step (`renamed_from`, `backfill`)."""

    tables: Mapping[str, Table]
    document: Mapping[str, Any] = field(compare=False, repr=False)
    users: UserFields = field(default_factory=dict)
    """The fields of users that rows may embed, by role."""

    @property
    def digest(self) -> str:
        """64 hex digits that are equal for documents that differ in nothing but the order of their keys."""
        return digest(self.document)


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of the document's canonical JSON: keys sorted, no blanks, UTF-8."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


EMPTY: Final = Schema(tables=MappingProxyType({}), document={"tables": {}})
"""What a new environment has: version 0."""
