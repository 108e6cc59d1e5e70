"""The door to the rows: nothing is read from a tenant's table but through `visible_to(principal)`, or `unruled`.

`RowManager` is the default and the base manager of every dynamic model. Each method of a manager passes through
`get_queryset`, which raises; so all the forms that nobody thought of are closed, too. A queryset made here carries a
`RuledQuery`, and only a `RuledQuery` may run SQL over tenant tables: `execution.refuse_strangers` stops what was built
past the managers (`QuerySet(model)`, `instance.delete()`). Querysets are for reading; `rows.services` writes.

The statements that answer the API are these querysets, compiled (`rows.query.select`).
"""

from typing import TYPE_CHECKING, Any, Literal, NoReturn

from django.db import models
from django.db.models.sql import Query
from django.db.models.sql.compiler import SQLCompiler

from platform_site.postgres.prepared import opened_door
from rows.rules.rules import Principal

if TYPE_CHECKING:
    from rows.query.role_view import Viewer


class PrincipalRequired(RuntimeError):
    """Rows were asked for in nobody's name. A programming error, never a client's."""


class ReadOnly(RuntimeError):
    """A queryset was asked to write. Writes go through `rows.services`, which checks rules and records events."""


class RuledQuery(Query):
    """A query that came out of a row manager; its compiler opens the door for its own execution."""

    def get_compiler(self, *args: Any, **kwargs: Any) -> SQLCompiler:
        compiler: SQLCompiler = super().get_compiler(*args, **kwargs)
        execute = compiler.execute_sql

        def execute_sql(*args: Any, **kwargs: Any) -> Any:
            with opened_door():
                return execute(*args, **kwargs)

        vars(compiler)["execute_sql"] = execute_sql
        return compiler


def _refuse_write(*_: Any, **__: Any) -> NoReturn:
    raise ReadOnly("write rows through rows.services")


class RowQuerySet(models.QuerySet[Any]):
    """Rows to be read. What Django would write with raises ReadOnly."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if type(self.query) is Query:
            self.query.__class__ = RuledQuery

    create = get_or_create = update_or_create = bulk_create = bulk_update = update = delete = _refuse_write
    acreate = aget_or_create = aupdate_or_create = abulk_create = abulk_update = aupdate = adelete = _refuse_write
    _raw_delete = raw = _refuse_write


class RowManager(models.Manager.from_queryset(RowQuerySet)):  # type: ignore[misc]
    """Rows of one tenant table, entered only through `visible_to`."""

    def get_queryset(self) -> NoReturn:
        raise PrincipalRequired("read rows through visible_to(principal)")

    def visible_to(self, principal: "Principal | Viewer") -> RowQuerySet:
        """The rows that `principal` may read, by the read rules of its role; without a rule, none. No query.

        These rows still hold the cells that it may not read: a `Viewer` says which, and `rows.query.select` asks it.
        """
        viewer = self._viewer(principal)
        return self._rows(viewer).filter(viewer.may_read(self.model.TABLE.name))

    def changeable_by(self, principal: "Principal | Viewer", action: Literal["update", "delete"]) -> RowQuerySet:
        """The rows that `principal` may update or delete: what it may read, and the action's own rule allows."""
        viewer = self._viewer(principal)
        return self._rows(viewer).filter(viewer.may_change(self.model.TABLE.name, action))

    def _viewer(self, principal: "Principal | Viewer") -> "Viewer":
        return self.model.SIBLINGS.viewer_of(principal) if isinstance(principal, Principal) else principal

    def _rows(self, viewer: "Viewer") -> RowQuerySet:
        return RowQuerySet(self.model, using=self._db or viewer.alias)


class UnruledManager(models.Manager.from_queryset(RowQuerySet)):  # type: ignore[misc]
    """All rows, for rules' own paths, referential actions, import and export. Conspicuous by its name, and meant so."""
