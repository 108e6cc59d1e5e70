from collections.abc import Iterator

import pytest
from django.conf import LazySettings
from django.urls import clear_url_caches

from platform_site.identity.callers import Caller
from tests.api.urls import CALLERS, environment


@pytest.fixture
def things(settings: LazySettings) -> Iterator[str]:
    """The URLs of `tests.api.urls` are served; the token of a caller that may read and write rows."""
    settings.ROOT_URLCONF = "tests.api.urls"
    clear_url_caches()
    CALLERS["good"] = Caller(
        kind="key",
        id="key_01",
        scopes=frozenset({"rows:read", "rows:write"}),
        environment=environment(allowed_origins=("https://a.test",)),
    )
    CALLERS["poor"] = Caller(kind="user", id="usr_01", scopes=frozenset(), environment=environment())
    CALLERS["owner"] = Caller(kind="account", id="usr_02", scopes=frozenset({"rows:read"}))
    yield "good"
    CALLERS.clear()
    clear_url_caches()
