"""Estimates, by statistics, of a schema change's locks: from start to commit, for all work under locks."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from django.db import connections

from platform_site.identity.callers import EnvironmentRef
from rows.migrate.apply import Operation
from rows.migrate.planning.plan import Plan

Work = Literal["rewrite", "scan", "index"]
Mode = Literal["ACCESS EXCLUSIVE", "SHARE ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE"]

_US_PER_ROW: Final[dict[Work, float]] = {"rewrite": 2.5, "scan": 0.4, "index": 3.0}
_US_PER_KB: Final[dict[Work, float]] = {"rewrite": 10.0, "scan": 2.0, "index": 5.0}

_TABLE: Final = re.compile(
    r'(?:ALTER TABLE|UPDATE|CREATE (?:UNIQUE )?INDEX (?:CONCURRENTLY )?"[^"]+" ON) (?:ONLY )?"([^"]+)"'
)
_COLUMN_TYPE: Final = re.compile(r'ALTER COLUMN "([^"]+)" TYPE (?:varchar\((\d+)\)|text)(?! .*USING)')
_ONLINE: Final = re.compile(r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY")
_KINDS: Final[tuple[tuple[re.Pattern[str], Work], ...]] = (
    (re.compile(r"UPDATE "), "rewrite"),
    (re.compile(r"CREATE (?:UNIQUE )?INDEX "), "index"),
    (re.compile(r"ALTER TABLE .* ADD CONSTRAINT \S+ UNIQUE \("), "index"),
    (re.compile(r"ALTER TABLE .* ADD CONSTRAINT \S+ (?:CHECK|FOREIGN KEY) "), "scan"),
    (re.compile(r'ALTER TABLE .* ALTER COLUMN "[^"]+" SET NOT NULL'), "scan"),
    (re.compile(r'ALTER TABLE .* ALTER COLUMN "[^"]+" TYPE '), "rewrite"),
    (re.compile(r"ALTER TABLE .* ADD COLUMN .* GENERATED ALWAYS "), "rewrite"),
)
"""Other statements only change the catalog."""


@dataclass(frozen=True, slots=True)
class TableLock:
    table: str
    mode: Mode
    rows: int
    bytes: int
    work: tuple[Work, ...] = ()
    estimated_ms: int = 0

    @property
    def blocks(self) -> str:
        return {"ACCESS EXCLUSIVE": "reads and writes", "SHARE ROW EXCLUSIVE": "writes"}.get(self.mode, "nothing")


def of(place: EnvironmentRef, plan: Plan, operations: Iterable[Operation]) -> tuple[TableLock, ...]:
    locks: dict[tuple[str, bool], TableLock] = {}
    work = list(_work(plan, operations))
    modes: dict[str, Mode] = dict.fromkeys(plan.guarded, "SHARE ROW EXCLUSIVE")
    modes |= dict.fromkeys(plan.exclusive, "ACCESS EXCLUSIVE")
    sizes = _sizes(place, {*modes, *(table for table, _, _ in work)})
    for table, mode in modes.items():
        locks[table, False] = TableLock(table, mode, *sizes.get(table, (0, 0)))
    for table, kind, is_online in work:
        if table not in sizes:
            continue  # one that the change makes
        rows, size = sizes[table]
        mode = "SHARE UPDATE EXCLUSIVE" if is_online else modes.get(table, "SHARE ROW EXCLUSIVE")
        lock = locks.get((table, is_online)) or TableLock(table, mode, rows, size)
        took = round((rows * _US_PER_ROW[kind] + size / 1024 * _US_PER_KB[kind]) / 1000)
        kinds = lock.work if kind in lock.work else (*lock.work, kind)
        locks[table, is_online] = replace(lock, work=kinds, estimated_ms=lock.estimated_ms + took)
    return tuple(locks[key] for key in sorted(locks))


def locked_ms(locks: Iterable[TableLock]) -> int:
    return sum(lock.estimated_ms for lock in locks if lock.mode != "SHARE UPDATE EXCLUSIVE")


def _work(plan: Plan, operations: Iterable[Operation]) -> Iterable[tuple[str, Work, bool]]:
    for statement in (each for operation in operations for each in operation.sql):
        named = _TABLE.match(statement)
        kind = next((kind for pattern, kind in _KINDS if pattern.match(statement)), None)
        if named is None or kind is None or _only_widens(plan, named[1], statement):
            continue
        is_online = _ONLINE.match(statement) is not None
        yield plan.renamed.was_table.get(named[1], named[1]), kind, is_online


def _only_widens(plan: Plan, table: str, statement: str) -> bool:
    """A text column that gets a greater length or none rewrites nothing."""
    wider = _COLUMN_TYPE.search(statement)
    if wider is None:
        return False
    was = plan.old.tables.get(plan.renamed.was_table.get(table, table))
    column = None if was is None else was.columns.get(plan.renamed.was_column.get((table, wider[1]), wider[1]))
    if column is None or column.type != "text":
        return False
    return wider[2] is None or (column.max_length is not None and column.max_length <= int(wider[2]))


_LEAST_ROW_BYTES: Final = 100
_SIZES: Final = """
SELECT c.relname, greatest(c.reltuples, pg_stat_get_live_tuples(c.oid))::bigint,
       (c.relpages + coalesce(t.relpages, 0)) * current_setting('block_size')::bigint
  FROM pg_class c LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
 WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r' AND c.relname = ANY (%s)
"""


def _sizes(place: EnvironmentRef, tables: Iterable[str]) -> dict[str, tuple[int, int]]:
    names = sorted(tables)
    if not names:
        return {}
    with connections[place.cluster].cursor() as cursor:
        cursor.execute(_SIZES, [place.environment_id, names])
        found = [(name, max(rows, 0), size) for name, rows, size in cursor.fetchall()]
    return {name: (rows, max(size, rows * _LEAST_ROW_BYTES)) for name, rows, size in found}
