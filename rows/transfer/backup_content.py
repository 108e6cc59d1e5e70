from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from django.core.exceptions import ValidationError
from django.utils.dateparse import parse_datetime

from platform_site.identity.callers import EnvironmentRef
from rows.migrate import service as schema_service
from rows.models import SchemaVersion
from rows.schema.model import EMPTY, InvalidDocument, Schema, Table
from rows.transfer.backup_file import Archive, DamagedArchive, Progress

SCHEMA: Final = "schema.json"
VERSIONS: Final = "versions.ndjson"
VERSION_FIELDS: Final = (
    "version", "document_text", "source_digest", "renames", "operations", "author_kind", "author_id", "reverts_to",
    "request_id",
)  # fmt: skip


class Part(Protocol):
    """A higher app's data of an environment in the region, as JSON objects. Called in the region's transaction."""

    def dump(self, environment: EnvironmentRef) -> Mapping[str, Iterator[Mapping[str, Any]]]:
        """By member, records that begin with an identifier; no secrets. Large lists need their own member."""

    def load(self, environment: EnvironmentRef, records: Callable[[str], Iterator[Mapping[str, Any]]]) -> int:
        """Create them; returns how many. Raises QuotaExceeded, and any error for invalid records."""

    def is_empty(self, environment: EnvironmentRef) -> bool:
        pass


registered_parts: Final[dict[str, Part]] = {}
"""Filled in `ready` of `webhooks.apps` and `functions.apps`."""


@dataclass(frozen=True, slots=True)
class Summary:
    schema_version: int
    rows: Mapping[str, int]
    parts: Mapping[str, int]
    is_ready: bool = True
    """False: a restored branch becomes ready at the next periodic job."""


def describe_invalid_row(table: Table, row_id: str, column: str) -> str:
    return f"the row {row_id!a} of {table.name} has a value that its column {column} does not allow"


def member_of(table: Table) -> str:
    return f"rows/{table.name}.copy"


@dataclass(frozen=True, slots=True)
class Content:
    archive: Archive
    schema: Schema
    version: int
    taken_at: datetime
    source_id: str
    parts: frozenset[str]


def verified(archive: Archive, progress: Progress = lambda count: None) -> Content:
    """Reads the whole file. Raises DamagedArchive."""
    archive.verify(progress)
    return read_content(archive)


def read_content(archive: Archive) -> Content:
    manifest = archive.manifest
    try:
        version = int(manifest["schema_version"])
        schema = schema_service.read(archive.json(SCHEMA)) if version else EMPTY
        taken_at = parse_datetime(manifest["taken_at"])
        source_id = str(manifest["environment"]["id"])
        tables = {table["name"]: (list(table["columns"]), int(table["rows"])) for table in manifest["tables"]}
        parts = {str(name): int(count) for name, count in manifest["parts"].items()}
    except InvalidDocument as error:
        raise DamagedArchive(f"its schema is not valid here: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedArchive("its manifest is not complete") from error
    if taken_at is None or taken_at.tzinfo is None:
        raise DamagedArchive("its manifest is not complete")
    if {name: list(table.all_columns) for name, table in schema.tables.items()} != {
        name: columns for name, (columns, _) in tables.items()
    }:
        raise DamagedArchive("its tables are not those of its schema")
    latest = None
    for number, record in enumerate(archive.json_lines(VERSIONS), 1):
        latest = version_of(record, number)
    last = (latest.version, latest.document) if latest else (0, EMPTY.document)
    if last != (version, schema.document):
        raise DamagedArchive("its schema is not the last of its versions")
    for name, count in parts.items():
        if sum(1 for _ in archive.json_lines(f"{name}.ndjson")) != count:
            raise DamagedArchive(f"{name}.ndjson does not hold as many lines as the manifest says")
    return Content(archive, schema, version, taken_at, source_id, frozenset(parts))


def version_of(record: Mapping[str, Any], number: int) -> SchemaVersion:
    """Without an environment. Raises DamagedArchive for another number."""
    try:
        made = SchemaVersion(
            **{name: _cell_of(SchemaVersion._meta.get_field(name), record[name]) for name in VERSION_FIELDS},
            applied_at=_cell_of(SchemaVersion._meta.get_field("applied_at"), record["applied_at"]),
        )
        is_whole = (
            made.version == number
            and isinstance(made.document["tables"], dict)
            and all(isinstance(each["operation"], str) for each in made.operations)
            and all(isinstance(was, str) for was in made.renames["tables"].values())
            and all(isinstance(was, str) for moved in made.renames["columns"].values() for was in moved.values())
        )
    except (AttributeError, KeyError, TypeError, ValueError, ValidationError, RecursionError) as error:
        raise DamagedArchive(f"{VERSIONS} cannot be read") from error
    if not is_whole:
        raise DamagedArchive(f"{VERSIONS} does not have each version once, in order")
    return made


def _cell_of(field: Any, value: Any) -> Any:
    if value is None and field.null:
        return None
    cell = field.to_python(value)
    if cell is None:
        raise TypeError
    field.run_validators(cell)
    return cell
