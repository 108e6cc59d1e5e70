"""Imports rows by COPY, in one transaction. Cells are validated as in the API (`rows.schema.column_values`); a
temporary table finds taken ids, violated uniques and missing references, so that every invalid line is reported. No
rules are applied."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from django.db import Error as DatabaseError
from django.db import connections, transaction
from psycopg import sql

from accounts.models import User
from platform_site.background.periodic import log_failures
from platform_site.http.requests import current_request_id
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres import replicas, sql_functions, sqlstates, statements, transaction_settings
from platform_site.postgres.row_access import row_access
from rows.changes import watched_tables
from rows.migrate import stored_values
from rows.migrate import versions as schema_versions
from rows.outbox import subscriptions
from rows.query.tables import table_checks, table_models
from rows.schema.column_values import LONG_TYPES, MAX_ROW_BYTES
from rows.schema.model import ID, NOW, SQL_TYPES, Column, Table
from rows.transfer import branch_copy, import_report
from rows.transfer.copy_lines import LineEncoder, in_chunks
from rows.transfer.exporter import json_cells
from rows.transfer.file_formats import RecordFile
from rows.transfer.import_report import BadLine, BadLines, ChangedDuringImport, NoSuchTable, Report, TooLong
from rows.write.references import dangling_references

_USERS_AT_ONCE: Final = 5000
_LONG_LINE: Final = MAX_ROW_BYTES // 64
"""Longer lines may exceed MAX_ROW_BYTES as stored: `1e308,` becomes 311 bytes."""
_STAGE: Final = sql.Identifier("_import")


def import_rows(
    environment: EnvironmentRef,
    table_name: str,
    source: RecordFile,
    *,
    skip_bad: bool = False,
    events: bool = False,
    dry_run: bool = False,
) -> Report:
    """`skip_bad` skips and reports invalid lines; otherwise they raise BadLines. `events` records events for
    subscribers. References to deleted users are resolved by `on_delete`. Raises NoSuchTable, BadLines, TooLong,
    ChangedDuringImport."""
    state = schema_versions.current(environment)
    table = state.schema.tables.get(table_name)
    if table is None:
        raise NoSuchTable(table_name, state.schema.tables)
    since = dangling_references.control_time()
    try:
        with transaction.atomic(using=environment.cluster), row_access():
            job = _Import(environment, state, table, skip_bad=skip_bad, events=events)
            report = job.run(source)
            replicas.raise_mark_on_commit(environment.cluster, environment.environment_id)
            due = dangling_references.schedule(environment, since)
            transaction.set_rollback(dry_run, using=environment.cluster)
    except DatabaseError as error:
        if sqlstates.sqlstate(error) in sqlstates.INTERFERED:
            raise ChangedDuringImport from error
        raise
    if not dry_run:
        with log_failures(f"references to deleted users in {environment.environment_id}"):
            dangling_references.remove_scheduled(environment, due)
    return report


class _Import:
    def __init__(
        self, environment: EnvironmentRef, state: schema_versions.State, table: Table, *, skip_bad: bool, events: bool
    ) -> None:
        self.environment, self.version, self.table, self.skip_bad = environment, state.version, table, skip_bad
        self.using = environment.cluster
        self.checks = table_models.checks_of(state.schema).get(table.name, {})
        self.columns = list(table.all_columns.values())
        self.target = sql.Identifier(environment.environment_id, table.name)
        self.names = branch_copy.columns_of(table)
        self.events = events and subscriptions.is_wanted(f"{table.name}.insert", environment.environment_id, self.using)
        self.report = Report()
        self.long_lines: list[int] = []

    def run(self, source: RecordFile) -> Report:
        transaction_settings.lift_limits(self.using)
        transaction_settings.set_local(self.using, work_mem="64MB")
        self._stage(source)
        if branch_copy.lock_version(self.using, self.environment.environment_id) != self.version:
            raise ChangedDuringImport  # the schema is another than the lines were read for
        self._check()
        self.report.bad.sort(key=lambda bad: bad.number)
        if self.report.bad_lines and not self.skip_bad:
            raise BadLines(self.report)
        try:
            self._insert()
        except DatabaseError as error:
            if sqlstates.sqlstate(error) in sqlstates.CONFLICTS:
                raise ChangedDuringImport from error
            if sqlstates.sqlstate(error) == sqlstates.TOO_LONG_FOR_AN_INDEX:
                raise TooLong(*table_models.too_long_together(self.table, sqlstates.constraint(error))) from error
            raise
        statements.execute(self.using, sql.SQL("DROP TABLE {}").format(_STAGE))
        return self.report

    def _stage(self, source: RecordFile) -> None:
        # Column by column: CREATE TABLE … LIKE would lock the table while the file is read.
        columns = sql.SQL(", ").join(map(_staged, self.columns))
        stage = sql.SQL("CREATE TEMP TABLE {} (_line bigint, _event text, {}) ON COMMIT DROP").format(_STAGE, columns)
        statements.execute(self.using, stage)
        copy = sql.SQL("COPY {} (_line, _event, {}) FROM STDIN").format(_STAGE, self.names)
        encode = LineEncoder(self.table, self.columns, sql_functions.now(self.using), events=self.events)
        with statements.copy(self.using, copy) as writing:
            for chunk in in_chunks(self._encoded(source, encode)):
                writing.write(chunk)
        statements.execute(self.using, sql.SQL("ANALYZE {}").format(_STAGE))

    def _encoded(self, source: RecordFile, encode: LineEncoder) -> Iterator[bytes]:
        for number, record in source.records(self.table):
            line = encode.line(number, record)
            if isinstance(line, list):
                self.report.add_bad_line(line)
                continue
            if len(line) > _LONG_LINE:
                self.long_lines.append(number)
            yield line

    def _check(self) -> None:
        """Removes lines that PostgreSQL or the API would refuse, with dependent ones."""
        self._reject_size()
        unique = [(ID.name,), *self.table.unique]
        for columns in unique:
            self._reject(self._duplicates(columns), columns, "is in this file twice")
            self._reject(self._taken(columns), columns, "is taken by a row of the table")
        for column in self.columns:
            if column.is_user:
                self._reject_users(column)
            if column.default == NOW and not column.implicit and (column.min is not None or column.max is not None):
                check = table_models.check_sql(column, connections[self.using])
                self._reject_check(check, [column.name], "is out of range")
        for name, condition in self.checks.items():
            self._reject_check(table_checks.text_of(self.table, condition), (), f'does not meet the check "{name}"')
        self._reject_references()

    def _reject(self, bad: sql.Composable, columns: Collection[str], message: str) -> None:
        rejected = sql.SQL("DELETE FROM {} WHERE _line IN ({}) RETURNING _line").format(_STAGE, bad)
        for line in statements.column(self.using, rejected):
            self.report.add_bad_line([BadLine(line, ", ".join(columns) or None, message)])

    def _reject_check(self, condition: str, columns: Collection[str], message: str) -> None:
        bad = sql.SQL("SELECT _line FROM {} WHERE NOT ({})").format(_STAGE, sql.SQL(condition))
        self._reject(bad, columns, message)

    def _reject_size(self) -> None:
        long = [column for column in self.columns if column.type in LONG_TYPES and not column.implicit]
        if long and self.long_lines:
            bad = sql.SQL("SELECT _line FROM {} WHERE _line = ANY({}::bigint[]) AND {}").format(
                _STAGE, sql.Literal(self.long_lines), stored_values.is_row_too_large(long)
            )
            self._reject(bad, (), import_report.TOO_LARGE)

    def _duplicates(self, columns: Sequence[str]) -> sql.Composed:
        """All but the first line with equal, non-null values in these columns."""
        named = sql.SQL(", ").join(map(sql.Identifier, columns))
        return sql.SQL(
            "SELECT _line FROM (SELECT _line, row_number() OVER (PARTITION BY {} ORDER BY _line) AS _nth FROM {}"
            " WHERE num_nulls({}) = 0) d WHERE _nth > 1"
        ).format(named, _STAGE, named)

    def _taken(self, columns: Sequence[str]) -> sql.Composed:
        same = sql.SQL(" AND ").join(sql.SQL("s.{0} = t.{0}").format(sql.Identifier(name)) for name in columns)
        return sql.SQL("SELECT s._line FROM {} s JOIN {} t ON {}").format(_STAGE, self.target, same)

    def _reject_references(self) -> None:
        """Reject lines with dangling references and the lines that refer to them, in one statement, because a file may
        be one long chain."""
        references = [column for column in self.columns if column.references]
        if not references:
            return
        dangling = sql.SQL(" UNION ALL ").join(map(self._dangling, references))
        if not statements.value(self.using, sql.SQL("SELECT EXISTS ({})").format(dangling)):
            return
        dependents = []
        for column in references:
            if column.references == self.table.name:
                name = sql.Identifier(column.name)
                statements.execute(self.using, sql.SQL("CREATE INDEX ON {} ({})").format(_STAGE, name))
                dependents.append(
                    sql.SQL("SELECT s._line, s.id, {}::text FROM {} s WHERE s.{} = b.id").format(
                        sql.Literal(column.name), _STAGE, name
                    )
                )
        further = sql.SQL(" UNION SELECT l.* FROM bad b CROSS JOIN LATERAL ({}) l").format(
            sql.SQL(" UNION ALL ").join(dependents)
        )
        rejected = sql.SQL(
            "WITH RECURSIVE bad (line, id, name) AS (({}){}), gone AS (DELETE FROM {} WHERE _line IN"
            " (SELECT line FROM bad)) SELECT DISTINCT ON (line) line, name FROM bad ORDER BY line, name"
        ).format(dangling, further if dependents else sql.SQL(""), _STAGE)
        for line, name in statements.rows(self.using, rejected):
            self.report.add_bad_line([BadLine(line, name, "refers to a row that does not exist")])

    def _dangling(self, column: Column) -> sql.Composed:
        far = sql.Identifier(self.environment.environment_id, column.references or "")
        dangling = sql.SQL("s.{0} IS NOT NULL AND NOT EXISTS (SELECT FROM {1} f WHERE f.id = s.{0})").format(
            sql.Identifier(column.name), far
        )
        if column.references == self.table.name:  # or to a row of the same file
            dangling += sql.SQL(" AND NOT EXISTS (SELECT FROM {} f WHERE f.id = s.{})").format(
                _STAGE, sql.Identifier(column.name)
            )
        return sql.SQL("SELECT s._line, s.id, {}::text FROM {} s WHERE {}").format(
            sql.Literal(column.name), _STAGE, dangling
        )

    def _reject_users(self, column: Column) -> None:
        name = sql.Identifier(column.name)
        query = sql.SQL("SELECT DISTINCT {} FROM {} WHERE {} IS NOT NULL").format(name, _STAGE, name)
        named = statements.column(self.using, query)
        pool = User.objects.in_pool(self.environment.pool_id)
        for at in range(0, len(named), _USERS_AT_ONCE):
            batch = named[at : at + _USERS_AT_ONCE]
            if unknown := set(batch).difference(pool.filter(pk__in=batch).values_list("pk", flat=True)):
                literals = sql.SQL(", ").join(map(sql.Literal, unknown))
                bad = sql.SQL("SELECT _line FROM {} WHERE {} IN ({})").format(_STAGE, name, literals)
                self._reject(bad, [column.name], "is not a user of the environment")

    def _insert(self) -> None:
        insert = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(self.target, self.names, self.names, _STAGE)
        self.report.rows = statements.execute(self.using, insert)
        if self.events:
            self._record_events()
        else:
            watched_tables.invalidate_positions(self.environment.environment_id, self.using)
        statements.execute(self.using, sql.SQL("ANALYZE {}").format(self.target))

    def _record_events(self) -> None:
        """With the payload of `rows.write.statements`."""
        self.report.events = statements.execute(
            self.using,
            sql.SQL(
                "INSERT INTO platform.rows_outboxevent"
                " (event_id, environment_id, type, subject, schema_version, request_id, depth, data)"
                " SELECT s._event, {environment}, {kind}, {table} || '/' || s.id, {version}, {request}, 0,"
                ' (SELECT row_to_json(_d)::text FROM (SELECT {table}::text AS "table", s.id AS id,'
                " row_to_json(_new) AS record, NULL::json AS old_record, '{{}}'::text[] AS changed) _d)"
                " FROM {stage} s CROSS JOIN LATERAL (SELECT {record}) _new ORDER BY s._line"
            ).format(
                environment=sql.Literal(self.environment.environment_id),
                kind=sql.Literal(f"{self.table.name}.insert"),
                table=sql.Literal(self.table.name),
                version=sql.Literal(self.version),
                request=sql.Literal(current_request_id()),
                stage=_STAGE,
                record=json_cells(self.columns, "s"),
            ),
        )


def _staged(column: Column) -> sql.Composed:
    """Type and collation: texts are only comparable under one."""
    type_ = SQL_TYPES[column.type]
    collation = sql.SQL(" COLLATE {}").format(sql.Identifier(table_models.COLLATION))
    return sql.SQL("{} {}{}").format(
        sql.Identifier(column.name), sql.SQL(type_), collation if type_ in ("text", "text[]") else sql.SQL("")
    )
