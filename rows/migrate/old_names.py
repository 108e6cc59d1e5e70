"""Finds what a change of the schema breaks in higher apps, by signals: uses of renamed or dropped tables and columns,
and what becomes invalid."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accounts.audit import Actor
from platform_site.http.errors import FieldError
from platform_site.identity import signals
from platform_site.identity.callers import Caller, EnvironmentRef
from rows.migrate.planning.plan import Plan
from rows.schema.model import MAX_ERRORS


@dataclass(frozen=True, slots=True)
class OldNames:
    """Removed names with their new ones; None for dropped ones."""

    tables: Mapping[str, str | None]
    columns: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    """By old table, without those of dropped tables."""

    def in_pattern(self, pattern: str) -> str | None:
        table = pattern.partition(".")[0]
        return table if table in self.tables else None

    def in_filter(self, document: Any, patterns: Sequence[str]) -> Iterator[tuple[str, str]]:
        named = {pattern.partition(".")[0] for pattern in patterns}
        found = set(_columns_of(document))
        for table, columns in self.columns.items():
            if named & {table, "*"}:
                yield from ((table, column) for column in columns if column in found)

    def in_source(self, source: str, patterns: Sequence[str]) -> Iterator[tuple[str, str | None]]:
        """The old tables (with None) and columns that are words of the source."""
        named = {pattern.partition(".")[0] for pattern in patterns}
        words = set(re.findall(r"\w+", source))
        yield from ((table, None) for table in self.tables if table in words)
        for table, columns in self.columns.items():
            if table in words or named & {table, "*"}:
                yield from ((table, column) for column in columns if column in words)

    def warning(self, path: str, table: str, column: str | None = None) -> FieldError:
        if column is None:
            named, becomes = f"the table {table}", self.tables[table]
        else:
            named, becomes = f"{table}.{column}", self.columns[table][column]
        if becomes is None:
            return FieldError(path, "dropped", f"This still names {named}, which the change drops.")
        return FieldError(path, "renamed", f"This still names {named}, which becomes {becomes}.")


def _columns_of(document: Any, *, names_columns: bool = True) -> Iterator[str]:
    """`names_columns`: the keys are columns, as they are outside of a column's operand."""
    if isinstance(document, str) and document.startswith("$old."):
        yield document.removeprefix("$old.")
    elif isinstance(document, list):
        for each in document:
            yield from _columns_of(each, names_columns=names_columns)
    elif isinstance(document, Mapping):
        for key, value in document.items():
            if key == "$column" and isinstance(value, str):
                yield value
            elif names_columns and not key.startswith("$"):
                yield key
                yield from _columns_of(value, names_columns=False)
            elif key.startswith("$"):
                yield from _columns_of(value, names_columns=names_columns and key in ("$and", "$or", "$not"))


def warnings(
    environment: EnvironmentRef, plan: Plan, actor: Caller | Actor | None, beside: Mapping[str, Any]
) -> tuple[FieldError, ...]:
    """Uses of removed names, and what becomes invalid otherwise, as far as `actor` may read it."""
    old_names = _old_names(plan)
    facts: dict[str, Any] = {"sender": Plan, "environment": environment, "actor": actor, "beside": beside}
    named: list[FieldError] = []
    if old_names.tables or old_names.columns:
        named = _answers(signals.names_changing.send(old_names=old_names, **facts))
    paths = {f"{each.field}." for each in named}
    invalid = _answers(signals.schema_changing.send(old=plan.old, new=plan.new, **facts))
    others = [each for each in invalid if not any(f"{each.field}.".startswith(path) for path in paths)]
    return tuple([*named, *others][:MAX_ERRORS])


def _answers(answers: Iterable[tuple[Any, Any]]) -> list[FieldError]:
    return [each for _, answer in answers for each in answer]


def _old_names(plan: Plan) -> OldNames:
    becomes = {old: new for new, old in plan.renamed.kept_tables.items()}
    tables = {old: becomes.get(old) for old in plan.old.tables if old not in plan.new.tables}
    columns = {old: _old_columns(plan, old, new) for old, new in becomes.items()}
    return OldNames(tables, {table: removed for table, removed in columns.items() if removed})


def _old_columns(plan: Plan, old_table: str, new_table: str) -> dict[str, str | None]:
    table = plan.new.tables[new_table]
    becomes = {old: new for new, old in plan.renamed.kept_columns.get(new_table, {}).items()}
    removed: dict[str, str | None] = {}
    for name, old in plan.old.tables[old_table].columns.items():
        column = table.columns[becomes[name]] if name in becomes else None
        # A reference has two names: `list` in documents, `list_id` in rows.
        removed[old.name] = None if column is None else column.name
        removed[old.key] = None if column is None else column.key
    return {old: new for old, new in removed.items() if table.column(old) is None}
