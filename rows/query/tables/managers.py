"""Rows are only read through `visible_to`, `changeable_by` or `unruled`: `RowManager.get_queryset` raises. SQL over
tenant tables is refused unless a `RuledQuery`, or a migration or transfer, runs it
(`platform_site.postgres.row_access`). Querysets of a role are compiled and never run, because a principal's values are
bound to the compiled statement (`rows.query.sql`). Querysets only read; `rows.write` writes."""

from typing import TYPE_CHECKING, Any, Literal, NoReturn

from django.db import models
from django.db.models.sql import Query
from django.db.models.sql.compiler import SQLCompiler

from platform_site.postgres.row_access import row_access

if TYPE_CHECKING:
    from rows.query.role_view import RoleView


class PrincipalRequired(RuntimeError):
    pass


class ReadOnly(RuntimeError):
    """Writes go through `rows.services`, which checks rules and records events."""


class RuledQuery(Query):
    def get_compiler(self, *args: Any, **kwargs: Any) -> SQLCompiler:
        compiler: SQLCompiler = super().get_compiler(*args, **kwargs)
        execute = compiler.execute_sql

        def execute_sql(*args: Any, **kwargs: Any) -> Any:
            with row_access():
                return execute(*args, **kwargs)

        vars(compiler)["execute_sql"] = execute_sql
        return compiler


def _refuse_write(*_: Any, **__: Any) -> NoReturn:
    raise ReadOnly("write rows through rows.services")


class RowQuerySet(models.QuerySet[Any]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if type(self.query) is Query:
            self.query.__class__ = RuledQuery

    create = get_or_create = update_or_create = bulk_create = bulk_update = update = delete = _refuse_write
    acreate = aget_or_create = aupdate_or_create = abulk_create = abulk_update = aupdate = adelete = _refuse_write
    _raw_delete = raw = _refuse_write


class RowManager(models.Manager.from_queryset(RowQuerySet)):  # type: ignore[misc]
    def get_queryset(self) -> NoReturn:
        raise PrincipalRequired("read rows through visible_to(role_view)")

    def visible_to(self, role_view: "RoleView") -> RowQuerySet:
        """The rows still have unreadable cells, which `rows.query.sql` masks."""
        return self._rows(role_view).filter(role_view.may_read(self.model.TABLE.name))

    def changeable_by(self, role_view: "RoleView", action: Literal["update", "delete"]) -> RowQuerySet:
        return self._rows(role_view).filter(role_view.may_change(self.model.TABLE.name, action))

    def _rows(self, role_view: "RoleView") -> RowQuerySet:
        return RowQuerySet(self.model, using=self._db or role_view.alias)


class UnruledManager(models.Manager.from_queryset(RowQuerySet)):  # type: ignore[misc]
    """All rows, for rules' own paths, referential actions, checks of written rows, explanations, and payloads of
    events."""
