"""The operations on rows, for callers with an environment and a principal: each is run with the current schema, by
itself or in the caller's transaction."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from platform_site.identity.callers import EnvironmentRef
from rows.query.aggregates.service import aggregate_rows
from rows.query.context import QueryContext, run
from rows.query.explain import explain
from rows.query.service import ListQuery, RowResult, list_rows, retrieve_row
from rows.rules.principal import Principal
from rows.write import bulk, inserts, service, upserts

__all__ = ["ListQuery", "RowResult", "aggregate_rows", "list_rows", "retrieve_row"]

P = ParamSpec("P")
T = TypeVar("T")


def _with_context(
    operation: Callable[Concatenate[QueryContext, P], T],
) -> Callable[Concatenate[EnvironmentRef, Principal, P], T]:
    @wraps(operation)
    def call(environment: EnvironmentRef, principal: Principal, /, *args: P.args, **options: P.kwargs) -> T:
        return run(environment, principal, lambda context: operation(context, *args, **options))

    return call


explain_row = _with_context(explain)
insert_row = _with_context(inserts.insert)
insert_rows = _with_context(inserts.insert_many)
update_row = _with_context(service.update)
update_rows = _with_context(bulk.update)
upsert_row = _with_context(upserts.upsert)
upsert_rows = _with_context(upserts.upsert_many)
delete_row = _with_context(service.delete)
delete_rows = _with_context(bulk.delete)
