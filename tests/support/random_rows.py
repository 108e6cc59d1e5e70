"""An environment with random rows, and changes of single cells."""

from collections.abc import Iterator
from typing import Any

import orjson
from django.db import connections
from hypothesis import HealthCheck, Phase, settings
from psycopg import sql

from platform_site.http.errors import ApiError
from platform_site.postgres.row_access import row_access
from rows import services
from rows.rules.principal import Principal
from rows.rules.rules import validate
from rows.schema.model import SQL_TYPES
from rows.schema.parser import parse
from tests.support import random_documents
from tests.support.documented_rules import Documented
from tests.support.random_documents import TABLES
from tests.support.tenants import ALICE, BOB, OPERATOR, REGION, Tenant

# What fails is small already, and each step of making it smaller makes tables: so no shrinking.
usual = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def tenant_with_rows(document: Any, rows: dict[str, list[Any]]) -> tuple[Tenant, Documented]:
    """An environment with these tables and rows, and what is known of it."""
    assert validate(parse(document)) == []
    tenant = Tenant(document).with_users(ALICE, BOB)
    for table in TABLES:
        for row in rows[table]:
            tenant.put(table, **row)
    return tenant, Documented(document, {table: tenant.rows(OPERATOR, table, limit=100) for table in TABLES})


def unreadable(document: Any, oracle: Documented, who: Principal) -> Iterator[tuple[str, Any, str, str]]:
    """Cells that `who` may not read: table, row, column, type."""
    for table in TABLES:
        seen = {row["id"]: row for row in oracle.seen(who, table)}
        for row in oracle.rows[table]:
            for name, type_ in random_documents.type_of(document, table).items():
                if type_ != "reference" and seen.get(row["id"], {}).get(name) is None:
                    yield table, row, name, type_


def answer(tenant: Tenant, who: Principal, table: str, query: Any) -> bytes:
    """The bytes of the answer, cursor and all, or of the refusal."""
    try:
        return services.list_rows(tenant.environment, who, table, services.ListQuery(**query)).body
    except ApiError as refused:
        return orjson.dumps(refused.body("req_1"))


def write(tenant: Tenant, table: str, row_id: str, column: str, type_: str, value: Any) -> None:
    """Change one cell and nothing else, `updated_at` least of all."""
    spelled = value
    if type_ == "json" and value is not None:
        spelled = orjson.dumps(value).decode()
    statement = sql.SQL("UPDATE {}.{} SET {} = %s::{} WHERE id = %s").format(
        sql.Identifier(tenant.environment.environment_id),
        sql.Identifier(table),
        sql.Identifier(column),
        sql.SQL(SQL_TYPES[type_]),  # type: ignore[index, arg-type]
    )
    with row_access(), connections[REGION].cursor() as cursor:
        cursor.execute(statement, [spelled, row_id])
        assert cursor.rowcount == 1
