"""Django's schema editor, restricted to one PostgreSQL schema by `search_path` (with qualified names, Django's
introspection misses objects), in the caller's transaction. It records each statement by operation. Changes of Django:
docs/adr/0002-schema-changes.md."""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

from django.db import Error as DatabaseError
from django.db import models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.ddl_references import Statement
from psycopg.sql import SQL, Identifier

from platform_site.postgres import sqlstates
from platform_site.postgres.base import SchemaEditor
from rows.query.tables import table_models

_DATE: Final = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME: Final = "[0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?( ?(Z|z|UTC|[-+][0-9]{2}(:?[0-9]{2})?))?"
# PostgreSQL also reads words (`today`, `now`, `epoch`) and days in the order of DateStyle.
_ISO_8601: Final = {"DateField": f"^{_DATE}$", "DateTimeField": f"^{_DATE}([T ]{_TIME})?$"}

# As `rows.schema.values` writes an equal value: no -0.0, and in JSON no zeros at the end of a fraction.
_EQUAL_FORM: Final = {
    "FloatField": " USING %(column)s::%(type)s + 0",
    "JSONField": r" USING CASE WHEN %(column)s ~ '[.][0-9]*0|0[eE]-'"
    r""" THEN regexp_replace(%(column)s::jsonb::text, '("([^"\\]|\\.)*")|([.][0-9]*[1-9])0*|[.]0+', '\1\3', 'g')"""
    r" ELSE %(column)s END::%(type)s",
}


class ForeignKey(Statement):
    pass


class RowSchemaEditor(SchemaEditor):
    """`recorded` gets (operation, statement). Indexes of `large` tables are only recorded
    (`rows.migrate.concurrent_indexes`). A unique in `made` (constraint → index, statement) takes over its index."""

    # Our keys are immediate and their ON DELETE is the database's; Django's would be deferred and do nothing.
    sql_create_column_inline_fk: Any = None
    sql_delete_fk = "ALTER TABLE %(table)s DROP CONSTRAINT %(name)s"
    sql_update_with_default = "UPDATE %(table)s SET %(column)s = %(default)s WHERE %(column)s IS NULL"

    def __init__(
        self,
        connection: BaseDatabaseWrapper,
        large: Collection[str] = (),
        made: Mapping[str, tuple[str, str]] = MappingProxyType({}),
    ) -> None:
        super().__init__(connection, atomic=False)
        self.large = frozenset(large)
        self.made = made
        self.recorded: list[tuple[str, str]] = []
        self.postponed = False
        self._operation = ""

    @contextmanager
    def during(self, operation: str) -> Generator[None]:
        self._operation = operation
        yield
        deferred, self.deferred_sql = self.deferred_sql, []
        for statement in deferred:
            self.execute(statement, None)

    def build(self, models_of_schema: Iterable[type[models.Model]], fill: Callable[[], None] | None = None) -> None:
        """All tables of an empty schema at once, several times faster than one by one. `fill` adds rows before indexes
        and foreign keys, so in any order. An index that cannot hold a row's value is postponed
        (`concurrent_indexes`)."""
        waiting: list[tuple[str, Any]] = []
        for model in models_of_schema:
            self._operation = f"create table {model._meta.db_table}"
            self.create_model(model)
            deferred, self.deferred_sql = self.deferred_sql, []
            for statement in deferred:
                if fill is not None or isinstance(statement, ForeignKey):
                    waiting.append((self._operation, statement))
                else:
                    self.execute(statement, None)
        if fill is not None:
            fill()
            waiting.sort(key=lambda entry: isinstance(entry[1], ForeignKey))
        for operation, statement in waiting:
            self._operation = operation
            if fill is None or isinstance(statement, ForeignKey):
                self.execute(statement, None)
            elif not self._fits(statement):
                self.postponed = True

    def _fits(self, statement: Any) -> bool:
        """Creates an index; False if PostgreSQL cannot index a value."""
        try:
            with transaction.atomic(using=self.connection.alias):
                self.execute(statement, None)
        except DatabaseError as error:
            if sqlstates.sqlstate(error) != sqlstates.TOO_LONG_FOR_AN_INDEX:
                raise
            return False
        return True

    def execute(self, sql: Any, params: Any = ()) -> None:
        text = str(sql)
        if params is not None:
            text = str(self.connection.ops.compose_sql(text, params))
        self.recorded.append((self._operation, text))
        super().execute(text, None)

    def add_index(self, model: type[models.Model], index: models.Index, concurrently: bool = False) -> None:
        if model._meta.db_table not in self.large:
            super().add_index(model, index)
            return
        self.postponed = True
        self.recorded.append((self._operation, str(index.create_sql(model, self, concurrently=True))))

    def add_constraint(self, model: type[models.Model], constraint: models.BaseConstraint) -> None:
        if constraint.name not in self.made:
            super().add_constraint(model, constraint)
            return
        index, made_by = self.made[constraint.name]
        self.recorded.append((self._operation, made_by))
        statement = SQL("ALTER TABLE {} ADD CONSTRAINT {} UNIQUE USING INDEX {}").format(
            Identifier(model._meta.db_table), Identifier(constraint.name), Identifier(index)
        )
        self.execute(statement.as_string(), None)

    def _iter_column_sql(
        self, column_db_type: Any, params: Any, model: Any, field: Any, field_db_params: Any, include_default: Any
    ) -> Any:
        parts = super()._iter_column_sql(  # type: ignore[misc]  # django-stubs leaves out what is private
            column_db_type, params, model, field, field_db_params, include_default
        )
        for part in parts:
            # Without a name of its own it would be `<table>_pkey`, which another table may be called.
            named = self.quote_name(table_models.primary_key_name(model._meta.db_table))
            yield f"CONSTRAINT {named} PRIMARY KEY" if part == "PRIMARY KEY" else part

    def _using_sql(self, new_field: Any, old_field: Any) -> str:
        using: str = super()._using_sql(new_field, old_field)  # type: ignore[misc]
        if not using:
            return using
        if isinstance(new_field, table_models.Text):
            # An explicit cast to varchar(n) cuts off what is too long; the assignment that follows refuses it.
            return " USING %(column)s::text"
        kind = new_field.get_internal_type()
        if isinstance(old_field, table_models.Text) and (pattern := _ISO_8601.get(kind)):
            # The cast refuses 'other'.
            return f" USING (CASE WHEN %(column)s !~ '{pattern}' THEN 'other' ELSE %(column)s END)::%(type)s"
        return _EQUAL_FORM.get(kind, using)

    def _create_fk_sql(self, model: Any, field: Any, suffix: str) -> Statement:
        statement = super()._create_fk_sql(model, field, suffix)  # type: ignore[misc]
        template = statement.template.replace("%(deferrable)s", f" ON DELETE {field.in_database}")
        return ForeignKey(template, **statement.parts)

    def _fk_constraint_name(self, model: Any, field: Any, suffix: str) -> Any:
        return self.quote_name(table_models.foreign_key_name(model._meta.db_table, field.column))
