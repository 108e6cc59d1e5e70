"""What PostgreSQL says a schema is, in a form that two schemas can be compared in."""

from typing import Any

from django.db import connections, transaction
from psycopg import sql

from rows.migrate import apply
from rows.migrate.planning import planner
from rows.schema.model import EMPTY, Schema
from rows.schema.parser import parse

REGION = "us-east-1"

_COLUMNS = """
    SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
           pg_get_expr(d.adbin, d.adrelid), l.collname
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    WHERE c.relnamespace = %s::regnamespace AND c.relkind = 'r'
"""
_CONSTRAINTS = """
    SELECT c.relname, o.conname, pg_get_constraintdef(o.oid), o.convalidated, o.condeferrable
    FROM pg_constraint o JOIN pg_class c ON c.oid = o.conrelid
    WHERE c.relnamespace = %s::regnamespace AND o.contype <> 'n'
"""
_INDEXES = """
    SELECT t.relname, i.relname, pg_get_indexdef(x.indexrelid), x.indisvalid, x.indisunique
    FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
    WHERE i.relnamespace = %s::regnamespace
"""
_OTHERS = "SELECT relname, relkind FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind NOT IN ('r', 'i')"


def catalog(schema: str, alias: str = REGION) -> dict[str, set[tuple[Any, ...]]]:
    """Everything but the order of columns and the names PostgreSQL gives NOT NULL constraints."""
    found = {}
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT set_config('search_path', 'pg_catalog', true)")
        for what, query in (
            ("columns", _COLUMNS), ("constraints", _CONSTRAINTS), ("indexes", _INDEXES), ("others", _OTHERS)
        ):  # fmt: skip
            cursor.execute(query, [schema])
            found[what] = {
                tuple(part.replace(f"{schema}.", "") if isinstance(part, str) else part for part in row)
                for row in cursor.fetchall()
            }
        cursor.execute("SELECT set_config('search_path', 'platform', true)")
    return found


def make(name: str, schema: Schema = EMPTY, alias: str = REGION) -> None:
    """A PostgreSQL schema `name` with the tables of `schema`."""
    with connections[alias].cursor() as cursor:
        cursor.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
    if schema.tables:
        change(name, EMPTY, schema, alias)


def change(name: str, old: Schema, new: Schema, alias: str = REGION, *, beforehand: bool = False) -> apply.Applied:
    """Plan and apply in one transaction. `beforehand`: with the indexes of new uniques made first, as on large tables
    (`rows.migrate.concurrent_unique_indexes`), where that can be."""
    with transaction.atomic(using=alias):
        plan = planner.plan(old, new)
        made = plan.new_uniques if beforehand else ()
        with apply.use_schema(alias, name), connections[alias].cursor() as cursor:
            for unique in made:
                cursor.execute(apply.new_unique_sql(unique, concurrently=False))
        return apply.apply(alias, name, plan, made)


def run(name: str, statement: str, *values: Any, alias: str = REGION) -> list[tuple[Any, ...]]:
    """One statement with the tables of `name` in reach."""
    with connections[alias].cursor() as cursor, transaction.atomic(using=alias):
        cursor.execute("SELECT set_config('search_path', %s, true)", [f'"{name}"'])
        cursor.execute(statement, values)
        rows = cursor.fetchall() if cursor.description else []
        cursor.execute("SELECT set_config('search_path', 'platform', true)")
        return rows


def schema(**tables: Any) -> Schema:
    """A schema of these tables; columns may be given as bare types."""
    document: dict[str, Any] = {}
    for name, table in tables.items():
        table = table if "columns" in table else {"columns": table}
        columns = {key: {"type": c} if isinstance(c, str) else c for key, c in table["columns"].items()}
        document[name] = {**table, "columns": columns}
    return parse({"tables": document})
