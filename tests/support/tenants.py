"""An environment with tables, and its principals: alice and bob are its users, the key and the owner are not.

tenant = Tenant(DOCUMENT)
tenant.put("lists", name="Home", owner_id=ALICE.user_id)      as the operator, no rule asked
tenant.rows(ALICE, "tasks", where={"done": False})            as the API does it, parsed
"""

from typing import Any

import orjson
from django.db import connections, transaction

from accounts.models import User
from platform_site.identity import ids
from platform_site.identity.callers import EnvironmentRef
from platform_site.postgres.row_access import row_access
from rows import services
from rows.models import CurrentVersion, SchemaVersion
from rows.query import schema_cache
from rows.rules.principal import Principal
from rows.schema.model import EMPTY, Schema
from rows.schema.parser import parse
from tests.support import catalog

REGION = catalog.REGION

ALICE = Principal("user", user_id="usr_01kaaaaaaaaaaaaaaaaaaaaaaa", email="alice@example.com")
BOB = Principal("user", user_id="usr_01kbbbbbbbbbbbbbbbbbbbbbbb", email="bob@example.com")
KEY = Principal("key", key_id="key_01kkkkkkkkkkkkkkkkkkkkkkkk")
OWNER = Principal("account", user_id="usr_01kwwwwwwwwwwwwwwwwwwwwwww", email="owner@example.com")
VIEWER = Principal("account", user_id="usr_01kvvvvvvvvvvvvvvvvvvvvvvv", reads_only=True)
VISITOR = Principal("anonymous", key_id="key_01kppppppppppppppppppppppp")
OPERATOR = Principal("key", key_id="key_01kzzzzzzzzzzzzzzzzzzzzzzz", bypass=True)


class Tenant:
    """One environment of the test region, at the version of the last document applied."""

    def __init__(self, document: dict[str, Any] | None = None) -> None:
        environment_id = ids.new("env")
        self.environment = EnvironmentRef(
            environment_id=environment_id,
            environment_name="production",
            project_id="prj_01kpppppppppppppppppppppppp",
            region=REGION,
            cluster=REGION,
            plan="free",
            pool_id=environment_id,
        )
        self.schema: Schema = EMPTY
        self.version = 0
        catalog.make(environment_id)
        if document is not None:
            self.apply(document)

    def apply(self, document: dict[str, Any]) -> None:
        """Move to the next version, as a change of schema does, in one transaction."""
        new = parse(document)
        with transaction.atomic(using=REGION):
            catalog.change(self.environment.environment_id, self.schema, new)
            self.version += 1
            SchemaVersion.objects.using(REGION).create(
                environment_id=self.environment.environment_id,
                version=self.version,
                document_text=orjson.dumps(dict(new.document)).decode(),
                source_digest=new.digest,
                author_kind="system",
            )
            CurrentVersion.objects.using(REGION).update_or_create(
                environment_id=self.environment.environment_id, defaults={"version": self.version}
            )
        self.schema = new

    @property
    def compiled(self) -> schema_cache.CompiledSchema:
        return schema_cache.compiled_schema(self.environment)

    def with_users(self, *cast: Principal) -> "Tenant":
        """Sign these users up in the environment's pool, which they leave any other for."""
        for who in cast:
            User.objects.update_or_create(
                id=who.user_id, defaults={"email": who.email, "environment_id": self.environment.pool_id}
            )
        return self

    def put(self, table: str, **cells: Any) -> str:
        """A new row, as the operator. Its id."""
        return services.insert_row(self.environment, OPERATOR, table, cells).id

    def insert(self, who: Principal, table: str, **cells: Any) -> Any:
        return orjson.loads(services.insert_row(self.environment, who, table, cells).body)

    def get(
        self, who: Principal, table: str, row_id: str, withs: str | None = None, columns: str | None = None
    ) -> Any:  # fmt: skip
        return orjson.loads(services.retrieve_row(self.environment, who, table, row_id, withs, columns).body)

    def update(self, who: Principal, table: str, row_id: str, /, **cells: Any) -> Any:
        return orjson.loads(services.update_row(self.environment, who, table, row_id, cells).body)

    def delete(self, who: Principal, table: str, row_id: str) -> None:
        services.delete_row(self.environment, who, table, row_id)

    def rows(self, who: Principal, table: str, **query: Any) -> list[Any]:
        """The rows of a page."""
        return list(self.page(who, table, **query)["data"])

    def page(self, who: Principal, table: str, **query: Any) -> Any:
        return orjson.loads(services.list_rows(self.environment, who, table, services.ListQuery(**query)).body)

    def pages(self, who: Principal, table: str, **query: Any) -> list[Any]:
        """The rows of all pages."""
        found: list[Any] = []
        cursor = None
        while True:
            page = self.page(who, table, cursor=cursor, **query)
            found += page["data"]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    def raw(self, sql: str, *params: Any) -> list[Any]:
        """SQL without any checks; `{}` in it is the environment's PostgreSQL schema."""
        with row_access(), connections[REGION].cursor() as cursor:
            cursor.execute(sql.replace("{}", f'"{self.environment.environment_id}"'), params)
            return cursor.fetchall() if cursor.description else []
