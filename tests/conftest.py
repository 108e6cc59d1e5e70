"""Hooks and fixtures for all tests."""

import os
import ssl
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
import hypothesis
import pytest
from django.conf import settings
from django.db import connections
from django.test import TransactionTestCase
from whitenoise.middleware import WhiteNoiseMiddleware

from accounts.tokens import signing_keys
from accounts.users import passwords
from platform_site.http.middleware import api as middleware
from platform_site.management.commands import migrate
from platform_site.postgres import libpq_connection
from projects.provisioning import suspension
from tests.support.browser import browser, browser_errors, window  # noqa: F401 - fixtures
from tests.support.client import Api
from tests.support.flush import flush_redis
from tests.support.service import Up, start_up

hypothesis.settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy machine")

_EXHAUSTIVE_FOLDERS = ("faults", "machines")
_TABLES_OF_MIGRATIONS = (
    "django_content_type",
    "auth_permission",
    "auth_group",
    "auth_group_permissions",
    "django_migrations",
)
"""Tables whose rows migrations make: no test changes them."""
_DROP_SCHEMAS = """
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT nspname FROM pg_namespace WHERE nspname ~ '^env_[0-9a-z]{26}$' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', name);
    END LOOP;
END $$
"""


_files_with_served: Final[set[Path]] = set()
"""Files with a test that uses `served`."""


@pytest.hookimpl(wrapper=True)  # marks before pytest selects by markers, and sorts after pytest-django does
def pytest_collection_modifyitems(items: list[pytest.Function]) -> Generator[None]:
    """Marks tests of faults and tests that use the whole service as exhaustive, and orders the files. Files that use
    `served` come first, so that the service can be stopped after them. The other exhaustive files are spread over the
    first half of the rest: a long file at the end would leave the other processes idle, and fault tests that run at the
    same time compete for the CPU."""
    exhaustive = set()
    for item in items:
        if "served" in item.fixturenames:
            _files_with_served.add(item.path)
        if (
            item.path.parent.name in _EXHAUSTIVE_FOLDERS
            or item.get_closest_marker("served")
            or item.get_closest_marker("exhaustive")
            or ("served" in item.fixturenames)
        ):
            item.add_marker("exhaustive")
            exhaustive.add(item.path)
    yield
    files = dict.fromkeys(item.path for item in items)
    long = [path for path in files if path in exhaustive - _files_with_served]
    short = [path for path in files if path not in exhaustive | _files_with_served]
    between = len(short) // (2 * len(long) or 1)
    place = {path: number * between for number, path in enumerate(long)}
    place |= {path: number for number, path in enumerate(short)} | dict.fromkeys(_files_with_served, -1)
    items.sort(key=lambda item: (place[item.path], item.path not in exhaustive, item.path))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Function, nextitem: pytest.Function | None) -> Generator[None]:
    """`served` ends before the first file that does without it: an idle service takes a tenth of a core."""
    yield
    if nextitem is not None and nextitem.path not in _files_with_served and item.path in _files_with_served:
        for fixture in item.session._fixturemanager.getfixturedefs("served", item) or ():
            fixture.finish(item._request)  # pytest sets it up again when a later test needs it


@pytest.fixture(scope="session")
def _recorded_migrations() -> Iterator[pytest.MonkeyPatch]:
    """Creates the test databases from the recorded migrations, as the first start of `up` does: running the migrations
    takes ten times as long. If the record does not fit, the migrations run."""
    run_migrations = migrate.Command.handle

    def handle(self: migrate.Command, *args: object, **options: Any) -> None:
        if not migrate.make_new(options["database"]):
            run_migrations(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate.Command, "handle", handle)
        yield patch


@pytest.fixture(scope="session")
def django_db_setup(_recorded_migrations: pytest.MonkeyPatch, django_db_setup: None) -> None:
    """pytest-django's databases. Tests of `migrate` find the real command."""
    _recorded_migrations.undo()


@pytest.fixture(scope="session", autouse=True)
def _tables_are_emptied_quickly() -> None:
    """After a test with real transactions Django empties every table of the four databases by TRUNCATE, and makes content
    types and permissions anew in each: half a second, however little there was. One message of DELETEs to each database
    costs some milliseconds. Our foreign keys are deferred, so the order does not matter."""

    @cache
    def statement(alias: str) -> str:
        connection = connections[alias]
        tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
        return "; ".join(
            f"DELETE FROM {connection.ops.quote_name(table)}" for table in tables if table not in _TABLES_OF_MIGRATIONS
        )

    def emptied(self: TransactionTestCase) -> None:
        for alias in self._databases_names(include_mirrors=False):
            with connections[alias].cursor() as cursor:
                cursor.execute(statement(alias))
                if alias in settings.REGION_DATABASES:
                    # The periodic job keeps schemas that had an environment; its record was just deleted.
                    cursor.execute(_DROP_SCHEMAS)
            _reset_session(connections[alias].connection)
            connections[alias].close_at = None  # set by a change of tables, which are gone
            connections[alias].close_if_unusable_or_obsolete()

    TransactionTestCase._fixture_teardown = emptied  # type: ignore[method-assign]
    # Django also closes the connections. The next test would wait for four processes of PostgreSQL with empty caches.
    TransactionTestCase._should_reload_connections = lambda self: False  # type: ignore[attr-defined]


def _reset_session(connection: Any) -> None:
    """Make a session of PostgreSQL, and what psycopg and we remember of it, as of a new connection."""
    connection.pgconn.exec_(b"DISCARD ALL")
    connection._prepared.clear()
    connection._prepared._to_flush.clear()
    ours = libpq_connection.of(connection)
    for remembered in (ours.prepared, ours._seen, ours._tables):
        remembered.clear()


@pytest.fixture(scope="session", autouse=True)
def _static_files_are_found_once() -> Iterator[None]:
    """Each test's client makes its own middleware, of which WhiteNoise looks at every static file: 30 ms."""
    found: dict[str, Any] = {}
    find = WhiteNoiseMiddleware.add_files_from_finders

    def add(self: WhiteNoiseMiddleware) -> None:
        if not found:
            find(self)
            found.update(self.files)
        self.files.update(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WhiteNoiseMiddleware, "add_files_from_finders", add)
        yield


@pytest.fixture(scope="session", autouse=True)
def _certificate_authorities_are_read_once() -> Iterator[None]:
    """httpx reads them for each client, also for one that speaks to http URLs alone: 25 ms."""
    create = httpx._transports.default.create_ssl_context

    @cache
    def trusting(file: str | None, directory: str | None) -> ssl.SSLContext:
        return create()

    def create_once(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is not True or cert is not None or not trust_env:
            return create(verify, cert, trust_env)
        return trusting(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx._transports.default, "create_ssl_context", create_once)
        yield


_HASHING_IN_PRODUCTION = {
    name: getattr(passwords.Argon2idHasher, name) for name in ("time_cost", "memory_cost", "parallelism")
}


@pytest.fixture(scope="session", autouse=True)
def _hashing_is_cheap() -> Iterator[None]:
    """In this process a password costs 0.1 ms instead of 37."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords.Argon2idHasher, "time_cost", 1)
        patch.setattr(passwords.Argon2idHasher, "memory_cost", 8)
        yield


@pytest.fixture
def hashing_as_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what a password costs."""
    for name, value in _HASHING_IN_PRODUCTION.items():
        monkeypatch.setattr(passwords.Argon2idHasher, name, value)
    monkeypatch.setattr(passwords, "_dummy_hash", cache(passwords._dummy_hash.__wrapped__))


@pytest.fixture
def with_fastpath(settings: Any) -> None:
    """For tests of the shortcuts themselves, when the suite runs with `FASTPATH=0`."""
    settings.FASTPATH = True


@pytest.fixture(autouse=True)
def _signing_keys_of_earlier_tests_are_forgotten() -> None:
    """Their table has been emptied since; a process that remembers them for 30 s signs what it will soon refuse."""
    signing_keys.forget()


@pytest.fixture(autouse=True)
def _suspensions_of_earlier_tests_are_forgotten() -> None:
    """A process goes by what it knows of them for some seconds."""
    for region in settings.REGION_DATABASES:
        suspension.evict(region)


@pytest.fixture(autouse=True)
def _hosts_of_earlier_tests_are_forgotten() -> None:
    middleware._known_hosts.clear()


@pytest.fixture(autouse=True)
def _counts_of_earlier_tests_are_forgotten() -> None:
    """All tests call from one IP address, whose limits last longer than a test."""
    flush_redis()


@pytest.fixture
def api() -> Api:
    """The API in this process, each answer held to `tests.support.response_invariants`."""
    return Api()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """The whole service, started once by `manage.py up` with its demo. Shared: leave it as you found it.

    `served.base_url`, `served.facts` (demo.json), `served.data_dir`, `served.process`. Rate limits are multiplied by
    RATE_LIMIT_FACTOR (100 unless the environment says otherwise).
    """
    factor = os.environ.get("RATE_LIMIT_FACTOR", "100")
    up = start_up(tmp_path_factory.mktemp("served") / "data", environment={"RATE_LIMIT_FACTOR": factor})
    yield up
    assert up.stop() == 0, up.output
    assert "did not stop in time" not in up.output
