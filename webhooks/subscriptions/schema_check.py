from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from platform_site.http.errors import FieldError
from platform_site.identity.callers import EnvironmentRef
from rows.outbox import event_types
from rows.query.schema_cache import CompiledSchema
from rows.rules import grammar
from rows.rules.name_resolver import InvalidCondition, NameResolver
from rows.rules.principal import SERVER
from rows.rules.rules import InvalidRule
from rows.schema.identifiers import did_you_mean
from rows.schema.model import Schema

MAX_FILTER_BYTES: Final = 8 * 1024
MAX_COLUMNS: Final = 500
MAX_SUGGESTIONS: Final = 20
"""Each takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Fields of a `Webhook`."""

    events: Sequence[str]
    filter: Mapping[str, Any] | None
    columns: Mapping[str, Any] | None


def compiled(environment: EnvironmentRef, schema: Schema) -> CompiledSchema:
    return CompiledSchema(environment.environment_id, environment.cluster, 0, schema, set())


def errors(environment: CompiledSchema, selection: Selection) -> list[FieldError]:
    """What role `server` cannot read of a filter and columns. A filter must be valid for every readable table that
    `events` name; with only wildcards, for at least one. `columns` is `{"table": ["column", …]}`."""
    found: list[FieldError] = []
    resolver = environment.rules.resolver(SERVER)
    tables = environment.schema.tables
    if selection.filter is not None:
        if len(orjson.dumps(selection.filter)) > MAX_FILTER_BYTES:
            found.append(FieldError("filter", "too_long", "Must have at most 8 KB."))
        else:
            readable = [table for table in tables if resolver.columns(table)]
            found += _filter_errors(selection.filter, selection.events, readable, resolver)
    for table, names in (selection.columns or {}).items():
        if table not in tables or not resolver.columns(table):
            found.append(FieldError(f"columns.{table[:60]}", "unknown", "There is no such table."))
        elif not isinstance(names, list):
            found.append(FieldError(f"columns.{table}", "not_a_list", "Must be an array of column names."))
        elif len(names) > MAX_COLUMNS:
            found.append(FieldError(f"columns.{table}", "too_many", f"Must have at most {MAX_COLUMNS} names."))
        else:
            for index, name in enumerate(names):
                if not isinstance(name, str) or resolver.column(table, name) is None:
                    known = resolver.columns(table) if len(found) < MAX_SUGGESTIONS else ()
                    message = f"There is no such column{did_you_mean(name, known) or '.'}"
                    found.append(FieldError(f"columns.{table}.{index}", "unknown", message))
    return found


def errors_caused(before: CompiledSchema, after: CompiledSchema, selection: Selection) -> list[FieldError]:
    """Those of `errors` that a change of the schema causes."""
    found = errors(after, selection)
    if not found:
        return []
    try:
        known = {each.field for each in errors(before, selection)}
    except InvalidRule:  # stored by an earlier version
        known = set()
    return [each for each in found if each.field not in known]


def _filter_errors(
    filter: Mapping[str, Any], patterns: Sequence[str], tables: list[str], resolver: NameResolver
) -> list[FieldError]:
    named = {pattern.partition(".")[0] for pattern in patterns if pattern not in event_types.SYSTEM_EVENTS}
    if chosen := [table for table in tables if table in named]:
        found = (_filter_error(filter, table, resolver) for table in chosen)
        return [error for error in found if error is not None]
    first: FieldError | None = None
    for table in tables if "*" in named else ():
        error = _filter_error(filter, table, resolver)
        if error is None:
            return []
        first = first or error
    return [first or FieldError("filter", "unknown", "The schema has no table that these events name.")]


def _filter_error(filter: Mapping[str, Any], table: str, resolver: NameResolver) -> FieldError | None:
    try:
        grammar.read_record(filter, table, resolver)
    except InvalidCondition as error:
        path = f"filter.{error.path}" if error.path else "filter"
        return FieldError(path, error.code, f"Table {table}: {error.message}")
    return None
