"""Test users: alice owns, bob is on her team, charlie has no access; and their credentials.

Tests that make projects need real commits, since a project's schemas are made by another transaction in another database:
they use `django_db(transaction=True, databases="__all__")` (the mark `real`), and what they made is dropped afterwards.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from django.db import connections

from accounts import audit
from accounts.keys import permissions
from accounts.models import User
from accounts.users import service as user_service
from accounts.users import sessions
from accounts.users.sessions import Device
from platform_site.identity import ids
from platform_site.identity.callers import PUBLISHABLE_SCOPES
from platform_site.redis import client as redis_client
from projects import services as projects
from projects.models import Environment, Project
from projects.provisioning import schemas
from tests.support.client import Answer
from tests.support.project_crashes import mortal_environment, mortal_process, run  # noqa: F401 - fixtures

REGIONS = ("us-east-1", "eu-west-1", "ap-southeast-1")


@pytest.fixture(autouse=True)
def _no_schema_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Real schemas survive the flush of a test's tables; the next test begins without them."""
    yield
    if request.node.get_closest_marker("django_db"):
        for region in REGIONS:
            for environment_id in schemas_in(region):
                schemas.drop_schema(environment_id, region)


def schemas_in(region: str) -> list[str]:
    """The environments' schemas that PostgreSQL has, asked of its catalogue."""
    with connections[region].cursor() as cursor:
        cursor.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'env%' ORDER BY 1")
        return [name for (name,) in cursor.fetchall()]


def make_orphan(region: str = "us-east-1", *, name: str | None = None) -> str:
    """A schema as one whose making was cut off leaves it. Returns its name."""
    name = name or ids.new("env")
    with connections[region].cursor() as cursor:
        cursor.execute(f'CREATE SCHEMA "{name}"')
        cursor.execute(f"COMMENT ON SCHEMA \"{name}\" IS '{schemas.BEING_CREATED}'")
    return name


Make = Callable[..., User]


@pytest.fixture
def make_account() -> Make:
    """A platform account without a password: no test signs in with one here, and hashing takes 50 ms."""

    def make(name: str, *, pool_id: str | None = None, **fields: object) -> User:
        return user_service.create_user(
            pool_id=pool_id, email=f"{name}@example.com", password=None, name=name.title(), actor=audit.SYSTEM, **fields
        )

    return make


@pytest.fixture
def alice(make_account: Make) -> User:
    return make_account("alice")


@pytest.fixture
def bob(make_account: Make) -> User:
    return make_account("bob")


@pytest.fixture
def charlie(make_account: Make) -> User:
    return make_account("charlie")


def token_of(user: User, environment_id: str | None = None) -> str:
    """An access token of a new session; for an app user, of a session in `environment_id`."""
    grant = sessions.start(
        user, environment_id=environment_id, device=Device(), method="password", password_hash=user.password
    )
    return grant.access_token


def key_for(environment_id: str | None, *scopes: str, account: User | None = None) -> str:
    """The secret of a new key of an environment, or of an account."""
    authority = permissions.operators(environment_id=environment_id, account_id=account.pk if account else None)
    return user_service.issue_key(name="test", scopes=scopes, authority=authority, actor=audit.SYSTEM)[1]


def publishable_key_for(environment_id: str, *scopes: str) -> str:
    """The text of a new publishable key of an environment; with all that one can hold, unless `scopes` says less."""
    return user_service.issue_key(
        name="page",
        scopes=scopes or PUBLISHABLE_SCOPES,
        authority=permissions.operators(environment_id=environment_id),
        actor=audit.SYSTEM,
        is_publishable=True,
    )[1]


def make_project(owner: User, name: str = "Tracker", *, region: str = "us-east-1", plan: str = "free") -> Project:
    return projects.create_project(account_id=owner.pk, name=name, region=region, plan=plan, actor=audit.SYSTEM)


def environment_of(project: Project, name: str = "production") -> Environment:
    return project.environments.get(name=name)


@pytest.fixture
def project(alice: User) -> Project:
    return make_project(alice, plan="pro")


@pytest.fixture
def production(project: Project) -> Environment:
    return environment_of(project)


class RoundTrips:
    """How often this thread asked PostgreSQL and Redis since the last `reset`."""

    def __init__(self) -> None:
        self.redis = 0
        self.statements: list[str] = []

    def reset(self) -> None:
        self.redis = 0
        self.statements.clear()

    @property
    def counts(self) -> tuple[int, int]:
        """(trips to Redis, statements)."""
        return self.redis, len(self.statements)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Iterator[RoundTrips]:
    """Counts what really goes out; everything still goes there."""
    counted = RoundTrips()
    exchange, mine = redis_client.Store.exchange, threading.get_ident()

    def counting_exchange(
        self: redis_client.Store, packed: bytes, expected: int, fills: Sequence[bytes] = ()
    ) -> list[object]:
        if threading.get_ident() == mine:  # what others left running, such as a watch, asks now and then
            counted.redis += 1
        return exchange(self, packed, expected, fills)

    def counting_execute(execute: Callable[..., object], statement: str, *rest: object) -> object:
        counted.statements.append(statement)
        return execute(statement, *rest)

    monkeypatch.setattr(redis_client.Store, "exchange", counting_exchange)
    with ExitStack() as stack:
        for alias in ("default", *REGIONS):
            stack.enter_context(connections[alias].execute_wrapper(counting_execute))
        yield counted


def at_once(count: int, call: Callable[[int], Answer]) -> list[Answer]:
    """`call(0)` … `call(count - 1)`, each in a thread of its own."""

    def one(number: int) -> Answer:
        try:
            return call(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))
