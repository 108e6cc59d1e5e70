from collections.abc import Iterator

import pytest
from django.db import connections

from platform_site.concurrency import loop_requests
from platform_site.postgres import loop_connections
from platform_site.redis import client as redis_client
from tests.support.event_loop import Loop


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    before = connections._connections, connections.create_connection  # type: ignore[attr-defined]
    loop_connections.install()
    made = Loop()
    yield made
    loop_connections.close_all()
    loop_connections._pools.clear()
    loop_requests._executor().shutdown()
    loop_requests._executor.cache_clear()
    redis_client._stores.clear()
    made.loop.close()
    connections._connections, connections.create_connection = before  # type: ignore[attr-defined, method-assign]
