"""The `checks` of a table as CHECK constraints."""

from typing import Any

from django.db import models
from django.db.models.expressions import RawSQL
from psycopg import sql

from rows.query.sql.conditions import ConditionCompiler, GivenRow
from rows.query.sql.expressions import Sql
from rows.rules.conditions import Condition, Constant, Operand
from rows.schema import identifiers
from rows.schema.model import SQL_TYPES, Table


def constraint_name(table: str, check: str) -> str:
    return identifiers.of("tc", table, check)


def constraint(table: Table, name: str, condition: Condition) -> models.CheckConstraint:
    text = text_of(table, condition).replace("%", "%%")  # Django's editor formats it
    checked = RawSQL(text, (), output_field=models.BooleanField())  # noqa: S611
    return models.CheckConstraint(condition=checked, name=constraint_name(table.name, name))


def text_of(table: Table, condition: Condition) -> str:
    """True only if the condition is met: PostgreSQL accepts a CHECK that is null."""
    compiler = ConditionCompiler.of_one_row(table, _literal)
    # With their types, so that a type change changes the check
    cells = {name: Sql(f'"{name}"::{SQL_TYPES[column.type]}') for name, column in table.all_columns.items()}
    return f"({_flat(compiler.condition(condition, table.name, GivenRow(cells)))}) IS TRUE"


def _literal(operand: Operand) -> Sql:
    assert isinstance(operand, Constant)  # noqa: S101 - for the type checker
    return Sql(f"{sql.Literal(operand.wire.decode()).as_string(None)}::{operand.type}")


def _flat(piece: Any) -> str:
    return piece if isinstance(piece, str) else "".join(map(_flat, piece.parts))
