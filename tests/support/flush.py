"""Between two tests: the Redis of the test run emptied."""

from functools import cache

import redis
from django.conf import settings

from tests.support import valkey as embedded_valkey


@cache
def _client() -> redis.Redis:
    return embedded_valkey.client(settings.LAYOUT)


def flush_redis() -> None:
    """As `FLUSHALL` would; that the service's own user may not do (`platform_site.embedded.valkey`)."""
    if names := list(_client().scan_iter(count=1000)):
        _client().delete(*names)
