"""A `Schema` as Django's `ProjectState`, for DDL only: bare table names (see `search_path`), real foreign keys, and
named objects. Rows are read through `dynamic_models`. docs/adr/0002-schema-changes.md."""

from collections.abc import Collection, Iterator, Mapping
from decimal import Decimal
from functools import reduce
from operator import and_
from typing import Any, Final

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.functions import RandomUUID
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.state import ModelState, ProjectState
from django.db.models.functions import Abs, Length, Now
from django.db.models.lookups import GreaterThanOrEqual, LessThan, LessThanOrEqual

from rows.query.sql.expressions import ordered
from rows.query.tables import table_checks
from rows.rules.checks import read_all
from rows.rules.conditions import Condition
from rows.rules.rules import Ruleset
from rows.schema import identifiers, literals
from rows.schema.formats import FORMATS
from rows.schema.model import Column, ColumnType, IndexSpec, Schema, Table

LABEL: Final = "tenant"
"""Not an installed app: Django would look for its migrations."""
COLLATION: Final = "pg_c_utf8"
"""The same order on each machine, Unicode case, and prefix searches by a plain btree."""

_IN_DATABASE: Final = {"cascade": "CASCADE", "restrict": "RESTRICT", "null": "SET NULL"}
_PLAIN_FIELDS: Final[Mapping[ColumnType, type["models.Field[Any, Any]"]]] = {
    "integer": models.BigIntegerField,
    "float": models.FloatField,
    "boolean": models.BooleanField,
    "date": models.DateField,
    "timestamp": models.DateTimeField,
    "uuid": models.UUIDField,
    "json": models.JSONField,
}
"""Of the column types that need nothing else."""


class Text(models.TextField):  # type: ignore[type-arg]
    """`text`, or `varchar(n)` with a length: as one field class, a change of length is an assignment cast, which
    refuses long values instead of truncating."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return f"varchar({int(self.max_length)})" if self.max_length else "text"


class Numeric(models.Field):  # type: ignore[type-arg]
    """Plain `numeric` with checks: `numeric(p, s)` would round."""

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return "numeric"


class Reference(models.ForeignKey):  # type: ignore[type-arg]
    """ON DELETE in the database, which Django 5.2 does not support."""

    def __init__(self, *args: Any, in_database: str = "RESTRICT", **kwargs: Any) -> None:
        self.in_database = in_database
        super().__init__(*args, **kwargs)

    def deconstruct(self) -> Any:
        name, path, args, kwargs = super().deconstruct()
        return name, path, args, {**kwargs, "in_database": self.in_database}


class TodayInUTC(models.Func):
    template = "((STATEMENT_TIMESTAMP() AT TIME ZONE 'UTC')::date)"
    output_field = models.DateField()
    arity = 0


_FUNCTIONS: Final[Mapping[str, type[models.Func]]] = {"date": TodayInUTC, "timestamp": Now, "uuid": RandomUUID}
"""For `literals.WORDS`."""
Checks = Mapping[str, Mapping[str, Condition]]


def state_of(
    schema: Schema, *, unconstrained: Collection[tuple[str, str]] = (), checks: Checks | None = None
) -> ProjectState:
    """New each time, because the autodetector changes it. `unconstrained`: (table, column) references without foreign
    key. `checks` replace those of the document."""
    if checks is None:
        checks = checks_of(schema)
    state = ProjectState()
    for table in schema.tables.values():
        loose = {column for owner, column in unconstrained if owner == table.name}
        state.add_model(_model_state(table, loose, checks.get(table.name, {})))
    return state


def checks_of(schema: Schema) -> Checks:
    author = Ruleset(schema).author
    return {table.name: read_all(table, author) for table in schema.tables.values() if table.checks}


def _model_state(table: Table, loose: Collection[str], checks: Mapping[str, Condition]) -> ModelState:
    fields = [(field_name(column), field_for(column, constrained=name not in loose))
              for name, column in table.all_columns.items()]  # fmt: skip
    constraints: list[models.BaseConstraint] = [
        models.UniqueConstraint(
            fields=[field_name(table.all_columns[name]) for name in columns], name=unique_name(table.name, columns)
        )
        for columns in table.unique
    ]
    for column in table.columns.values():
        if condition := check_of(column):
            constraints.append(models.CheckConstraint(condition=condition, name=check_name(table.name, column.name)))
    constraints += [table_checks.constraint(table, name, condition) for name, condition in checks.items()]
    options = {
        "db_table": table.name,
        "indexes": [index_for(table, spec) for spec in table.indexes],
        "constraints": constraints,
    }
    return ModelState(LABEL, table.name, fields, options=options)


def field_name(column: Column) -> str:
    """References are named as in the document, since Django adds `_id`."""
    return column.key if column.is_reference else column.name


def unique_name(table: str, columns: tuple[str, ...]) -> str:
    return identifiers.of("uq", table, *columns)


def new_unique_name(table: str, columns: tuple[str, ...]) -> str:
    return identifiers.of("nu", table, *columns)


def index_name(table: str, spec: IndexSpec) -> str:
    return identifiers.of("ix", table, *map(str, spec.keys))


_TEXTS_OF_A_PAGE: Final = 4
"""More texts of an index may exceed the 8,191 bytes of an entry."""


def too_long_together(table: Table, index: str | None) -> tuple[str, ...]:
    """Columns whose values are too long for this index, or for any (error 54000); empty for other errors."""
    found: dict[str, None] = {}
    held = {index_name(table.name, spec): [key.column for key in spec.keys] for spec in table.indexes}
    held |= {unique_name(table.name, unique): list(unique) for unique in table.unique}
    for name, columns in held.items():
        declared = [table.columns[column] for column in columns if column in table.columns]
        texts = [column.name for column in declared if column.type == "text"]
        if name == index or (not index and len(texts) >= _TEXTS_OF_A_PAGE):
            found |= dict.fromkeys(texts or [column.name for column in declared])
    return tuple(found)


def check_name(table: str, column: str) -> str:
    return identifiers.of("ck", table, column)


def foreign_key_name(table: str, column: str) -> str:
    return identifiers.of("fk", table, column)


def primary_key_name(table: str) -> str:
    return identifiers.of("pk", table)


def index_for(table: Table, spec: IndexSpec) -> models.Index:
    columns = table.all_columns
    keys = [
        ordered(models.F(field_name(columns[key.column])), descending=key.descending, nulls_first=key.nulls_first)
        for key in spec.keys
    ]
    return models.Index(*keys, name=index_name(table.name, spec))


def check_of(column: Column) -> models.Q | None:
    """The column's CHECK, which also holds for COPY and `psql`."""
    found = list(_checks_of(column))
    return reduce(and_, found) if found else None


def _checks_of(column: Column) -> Iterator[models.Q]:
    cell = models.F(column.name)
    if column.type == "enum":
        yield models.Q(**{f"{column.name}__in": sorted(column.values)})
    if column.type == "decimal" and column.precision is not None and column.scale is not None:
        scale = models.Func(cell, function="min_scale", output_field=models.IntegerField())
        # NaN is greater than every number in PostgreSQL, so the second half refuses it too.
        ceiling = Decimal(10) ** (column.precision - column.scale)
        yield models.Q(LessThanOrEqual(scale, column.scale))
        yield models.Q(LessThan(Abs(cell, output_field=Numeric()), models.Value(ceiling, output_field=Numeric())))
    # The bounds carry their type, so that the constraint of a column that changes its type counts as another one.
    if column.min is not None:
        yield models.Q(GreaterThanOrEqual(cell, _literal(column, column.min)))
    if column.max is not None:
        yield models.Q(LessThanOrEqual(cell, _literal(column, column.max)))
    if column.min_length is not None:
        yield models.Q(GreaterThanOrEqual(Length(cell), column.min_length))
    if column.format is not None:
        wanted = FORMATS[column.format]
        yield models.Q(**{f"{column.name}__regex": wanted.sql_pattern})
        if wanted.max_length is not None:
            yield models.Q(LessThanOrEqual(Length(cell), wanted.max_length))


def check_sql(column: Column, connection: BaseDatabaseWrapper) -> str:
    if (condition := check_of(column)) is None:
        return "true"
    state = ProjectState()
    state.add_model(ModelState(LABEL, "checked", [("id", Text(primary_key=True)), (column.name, field_for(column))]))
    constraint = models.CheckConstraint(condition=condition, name="_")
    editor = connection.SchemaEditorClass(connection)
    found: str = constraint._get_check_sql(  # type: ignore[attr-defined]  # django-stubs leaves out what is private
        state.apps.get_model(LABEL, "checked"), editor
    )
    return found


def field_for(column: Column, *, constrained: bool = True) -> "models.Field[Any, Any]":
    if column.name == "id" and column.implicit:
        return Text(primary_key=True, db_collation=COLLATION)
    options: dict[str, Any] = {"null": column.null, "blank": column.null}
    if column.default is not None and column.default == literals.WORDS.get(column.type):
        options["db_default"] = _FUNCTIONS[column.type]()
    elif column.default is not None:
        options["db_default"] = _literal(column, literals.value(column, column.default))
    if not column.is_reference:
        return plain_field(column, **options)
    return Reference(
        f"{LABEL}.{column.references}",
        on_delete=models.DO_NOTHING,
        in_database=_IN_DATABASE[column.on_delete or "restrict"],
        related_name="+",
        db_index=False,
        db_constraint=constrained,
        **options,
    )


def _literal(column: Column, value: Any) -> models.Value:
    return models.Value(value, output_field=plain_field(column))


def plain_field(column: Column, **options: Any) -> "models.Field[Any, Any]":
    match column.type:
        case "text" | "enum" | "user" | "reference":
            return Text(max_length=column.max_length, db_collation=COLLATION, **options)
        case "decimal":
            return Numeric(**options)
        case "text[]":
            return ArrayField(Text(db_collation=COLLATION), **options)
    return _PLAIN_FIELDS[column.type](**options)
