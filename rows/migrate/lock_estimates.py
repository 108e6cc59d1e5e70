"""Estimates, by statistics, of a schema change's locks: from start to commit, for all work under locks."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from platform_site.identity.callers import EnvironmentRef
from rows.migrate.apply import Operation
from rows.migrate.planning.plan import Plan
from rows.query.tables.catalog import estimated_sizes

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
_LEAST_ROW_BYTES: Final = 100


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


def of(environment: EnvironmentRef, plan: Plan, operations: Iterable[Operation]) -> tuple[TableLock, ...]:
    locks: dict[tuple[str, bool], TableLock] = {}
    modes: dict[str, Mode] = dict.fromkeys(plan.guarded, "SHARE ROW EXCLUSIVE")
    modes |= dict.fromkeys(plan.exclusive, "ACCESS EXCLUSIVE")
    estimates = estimated_sizes(environment.cluster, environment.environment_id)
    sizes = {name: (rows, max(size, rows * _LEAST_ROW_BYTES)) for name, (rows, size) in estimates.items()}
    for table, mode in modes.items():
        locks[table, False] = TableLock(table, mode, *sizes.get(table, (0, 0)))
    for table, kind, is_online in _work(plan, operations):
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
        yield plan.renamed.old_tables.get(named[1], named[1]), kind, is_online


def _only_widens(plan: Plan, table: str, statement: str) -> bool:
    """A text column that gets a greater length or none rewrites nothing."""
    wider = _COLUMN_TYPE.search(statement)
    if wider is None:
        return False
    old = plan.old.tables.get(plan.renamed.old_tables.get(table, table))
    column = None if old is None else old.columns.get(plan.renamed.old_columns.get((table, wider[1]), wider[1]))
    if column is None or column.type != "text":
        return False
    return wider[2] is None or (column.max_length is not None and column.max_length <= int(wider[2]))
