import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from django.db.models import QuerySet

from accounts.audit import Actor
from accounts.keys.publishable_key_exposure import Exposure
from platform_site.http.errors import FieldError, NotFound, ValidationFailed
from platform_site.http.requests import current_request_id
from platform_site.identity import signals
from platform_site.identity.callers import Caller, EnvironmentRef
from rows.migrate.computation_slots import in_slot
from rows.models import CurrentVersion, SchemaVersion
from rows.rules import principal
from rows.schema import model as schema_model
from rows.schema import parser
from rows.schema.model import ACTIONS, EMPTY, MAX_ERRORS, Schema


class NoSuchVersion(NotFound):
    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__()


@dataclass(frozen=True, slots=True)
class State:
    version: int
    schema: Schema
    record: SchemaVersion | None
    indexes_due: bool = False


def current(environment: EnvironmentRef) -> State:
    row = CurrentVersion.objects.using(environment.cluster).filter(environment_id=environment.environment_id).first()
    if row is None or row.version == 0:
        return State(0, EMPTY, None)
    record = version(environment, row.version)
    return State(row.version, parser.parse(record.document), record, row.indexes_due)


def version(environment: EnvironmentRef, number: int) -> SchemaVersion:
    record = history(environment).filter(version=number).first() if number < 2**31 else None
    if record is None:
        raise NoSuchVersion(number)
    return record


def add(
    environment: EnvironmentRef,
    row: CurrentVersion,
    document: Mapping[str, Any],
    operations: list[dict[str, Any]],
    *,
    actor: Caller | Actor | None,
    indexes_due: bool,
    source_digest: str | None = None,
    renames: Mapping[str, Any] | None = None,
    reverts_to: int | None = None,
) -> int:
    """Record the document as the version after that of the locked `row`, signal it, and return its number, which is
    never reused: processes cache schemas by it. `actor` is None for the system."""
    record = SchemaVersion.objects.using(environment.cluster).create(
        environment_id=environment.environment_id,
        version=row.version + 1,
        document_text=json.dumps(document, ensure_ascii=False),
        source_digest=schema_model.digest(document) if source_digest is None else source_digest,
        renames={"tables": {}, "columns": {}} if renames is None else renames,
        operations=operations,
        author_kind="system" if actor is None else actor.kind,
        author_id=None if actor is None else actor.id,
        reverts_to=reverts_to,
        request_id=current_request_id(),
    )
    CurrentVersion.objects.using(environment.cluster).filter(pk=row.pk).update(
        version=record.version, indexes_due=indexes_due
    )
    signals.schema_migrated.send(
        sender=SchemaVersion,
        environment=environment,
        version=record.version,
        operations=record.operation_names,
        using=environment.cluster,
    )
    return record.version


def add_replacement(
    environment: EnvironmentRef,
    row: CurrentVersion,
    old: Schema,
    new: Schema,
    name: str,
    *,
    actor: Caller | Actor | None,
    indexes_due: bool,
) -> int:
    operation = {"operation": name, "sql": [], "destructive": bool(old.tables)}
    return add(environment, row, new.document, [operation], actor=actor, indexes_due=indexes_due)


def history(environment: EnvironmentRef) -> "QuerySet[SchemaVersion]":
    return SchemaVersion.objects.using(environment.cluster).filter(environment_id=environment.environment_id)


def current_versions(cluster: str, environment_ids: Collection[str]) -> dict[str, int]:
    found = CurrentVersion.objects.using(cluster).filter(environment_id__in=environment_ids)
    return dict(found.values_list("environment_id", "version"))


def count_tables(environment: EnvironmentRef) -> int:
    return len(current(environment).schema.tables)


def open_to_anonymous(environment: EnvironmentRef) -> Exposure:
    schema = current(environment).schema
    named = {table.name: table.rules.get(principal.ANONYMOUS, ()) for table in schema.tables.values()}
    tables = {name: [each for each in ACTIONS if each in actions] for name, actions in named.items() if actions}
    return Exposure(tables, user_fields=schema.users.get(principal.ANONYMOUS, ()))


@in_slot
def document_to_revert_to(
    environment: EnvironmentRef, number: int, backfill: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """The document of version `number`, with `renamed_from` for each name that changed since, and `backfill` (by
    `table.column`) for existing rows. Raises NoSuchVersion, and ValidationFailed for columns that the version lacks."""
    document = {"tables": {}} if number == 0 else version(environment, number).document
    _set_backfill(document, backfill)
    if number == 0:
        return document
    first = parser.parse(document)
    tables, columns, _ = names_now(
        environment,
        number,
        first,
        tables={name: name for name in first.tables},
        columns={name: {column: column for column in table.columns} for name, table in first.tables.items()},
    )
    for name, at in tables.items():
        if at != name:
            document["tables"][name]["renamed_from"] = at
        for column, column_at in columns[name].items():
            if column_at != column:
                key = first.tables[name].columns[column].key
                document["tables"][name]["columns"][key]["renamed_from"] = column_at
    return document


def _set_backfill(document: dict[str, Any], backfill: Mapping[str, Any]) -> None:
    unknown = []
    for name, value in backfill.items():
        table, _, key = name.partition(".")
        column = document["tables"].get(table, {}).get("columns", {}).get(key)
        if column is None:
            unknown.append(FieldError(f"backfill.{name[:200]}", "unknown", "The version has no such column."))
        else:
            column["backfill"] = value
    if unknown:
        raise ValidationFailed(fields=unknown[:MAX_ERRORS])


def names_now(
    environment: EnvironmentRef,
    number: int,
    schema: Schema,
    tables: Mapping[str, str],
    columns: Mapping[str, Mapping[str, str]],
) -> tuple[Mapping[str, str], Mapping[str, Mapping[str, str]], Schema]:
    """Follows the renames of tables and of their columns, given by their names in version `number`, whose schema is
    `schema`. Leaves out what was dropped. Reads versions one by one: there may be thousands."""
    since = history(environment).filter(version__gt=number).order_by("version").values_list("version", flat=True)
    for following in list(since):
        record = version(environment, following)
        schema = parser.parse(record.document)
        tables = _moved(tables, record.renames["tables"], schema.tables)
        columns = {
            name: _moved(columns[name], record.renames["columns"].get(at, {}), schema.tables[at].columns)
            for name, at in tables.items()
        }
    return tables, columns, schema


def _moved(names: Mapping[str, str], renames: Mapping[str, str], present: Collection[str]) -> dict[str, str]:
    """The names one version later, without dropped ones. `renames` maps new names to old ones."""
    moved = {old: new for new, old in renames.items()}
    found = {}
    for origin, name in names.items():
        if name in moved:
            found[origin] = moved[name]
        elif name in present and name not in renames:
            found[origin] = name
    return found
