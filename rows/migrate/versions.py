"""The versions of an environment's schema: the current one, its history, and the document to go back to one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from accounts.keys.publishable_key_exposure import OpenRows
from platform_site.identity.callers import EnvironmentRef
from rows.models import CurrentVersion, SchemaVersion
from rows.rules import principal
from rows.schema import parser
from rows.schema.model import ACTIONS, EMPTY, Schema


class SchemaError(Exception):
    """Base of the errors below. Never raised itself."""


class NoSuchVersion(SchemaError):
    """The environment never had this version."""


@dataclass(frozen=True, slots=True)
class State:
    """What an environment has at one version."""

    version: int
    schema: Schema
    record: SchemaVersion | None
    """None at version 0."""
    indexes_due: bool = False


def current(place: EnvironmentRef) -> State:
    """The schema as it is now. Two queries."""
    row = CurrentVersion.objects.using(place.cluster).filter(environment_id=place.environment_id).first()
    if row is None or row.version == 0:
        return State(0, EMPTY, None)
    record = version(place, row.version)
    return State(row.version, parser.parse(record.document), record, row.indexes_due)


def version(place: EnvironmentRef, number: int) -> SchemaVersion:
    """One version. Raises NoSuchVersion."""
    record = history(place).filter(version=number).first() if number < 2**31 else None
    if record is None:
        raise NoSuchVersion(number)
    return record


def history(place: EnvironmentRef) -> "QuerySet[SchemaVersion]":
    """All versions, unordered."""
    return SchemaVersion.objects.using(place.cluster).filter(environment_id=place.environment_id)


def current_versions(cluster: str, environment_ids: Collection[str]) -> dict[str, int]:
    """The current version of each of these environments of one database that has one. One query."""
    found = CurrentVersion.objects.using(cluster).filter(environment_id__in=environment_ids)
    return dict(found.values_list("environment_id", "version"))


def count_tables(place: EnvironmentRef) -> int:
    """How many tables the environment has. Two queries."""
    return len(current(place).schema.tables)


def open_to_anonymous(place: EnvironmentRef) -> OpenRows:
    """The tables whose rules name role `anonymous`, and the fields of users that it sees. Two queries."""
    schema = current(place).schema
    named = {table.name: table.rules.get(principal.ANONYMOUS, ()) for table in schema.tables.values()}
    tables = {name: [each for each in ACTIONS if each in actions] for name, actions in named.items() if actions}
    return OpenRows(tables, schema.users.get(principal.ANONYMOUS, ()))


def document_to_revert_to(place: EnvironmentRef, number: int) -> dict[str, Any]:
    """The document of version `number`, with `renamed_from` wherever a name has changed since, so that what was renamed
    since is renamed back. Versions are read one by one: there may be thousands, of half a megabyte each.

    Version 0 is the empty document. Raises NoSuchVersion.
    """
    if number == 0:
        return {"tables": {}}
    document = version(place, number).document
    first = parser.parse(document)
    tables = {name: name for name in first.tables}
    columns = {name: {column: column for column in table.columns} for name, table in first.tables.items()}
    since = history(place).filter(version__gt=number).order_by("version").values_list("version", flat=True)
    for following in list(since):
        record = version(place, following)
        later = parser.parse(record.document)
        now = moved(tables, record.renames["tables"], later.tables)
        columns = {
            name: moved(columns[name], record.renames["columns"].get(at, {}), later.tables[at].columns)
            for name, at in now.items()
        }
        tables = now
    for name, at in tables.items():
        if at != name:
            document["tables"][name]["renamed_from"] = at
        for column, column_at in columns[name].items():
            if column_at != column:
                key = first.tables[name].columns[column].key
                document["tables"][name]["columns"][key]["renamed_from"] = column_at
    return document


def moved(names: Mapping[str, str], renames: Mapping[str, str], present: Collection[str]) -> dict[str, str]:
    """Where each name is one version later; dropped names are left out. `renames` maps new names to old ones."""
    moved = {old: new for new, old in renames.items()}
    found = {}
    for origin, name in names.items():
        if name in moved:
            found[origin] = moved[name]
        elif name in present and name not in renames:
            found[origin] = name
    return found
