"""Counts what is sent to the databases, however it is sent."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections

from platform_site.postgres import prepared


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The statements that Django's cursors and libpq send within."""
    sent: list[str] = []
    execute, pipeline = prepared.execute, prepared.pipeline_in_order

    def by_cursor(run: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        sent.append(str(sql))
        return run(sql, params, many, context)

    def by_libpq(wrapper: Any, sql: bytes, values: Any) -> Any:
        sent.append(sql.decode())
        return execute(wrapper, sql, values)

    def by_pipeline(wrapper: Any, statements: Any, is_silent: Any = None) -> Any:
        sent.extend(sql.decode() for sql, _ in statements)
        return pipeline(wrapper, statements, is_silent)

    with contextlib.ExitStack() as stack, monkeypatch.context() as patch:
        patch.setattr(prepared, "execute", by_libpq)
        patch.setattr(prepared, "pipeline_in_order", by_pipeline)
        for alias in connections:
            stack.enter_context(connections[alias].execute_wrapper(by_cursor))
        yield sent
