"""Test users: alice owns a project, bob develops in it, dora is a viewer, charlie has no access, una is an app user."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from accounts import audit
from accounts.keys import permissions
from accounts.models import ServerKey, User
from accounts.tokens import signing_keys
from accounts.users import passwords, sessions
from accounts.users import service as user_service
from accounts.users.sessions import Device
from platform_site.identity.callers import ENVIRONMENT_SCOPES
from projects.models import Environment, Member, Project
from tests.support.client import Answer, Api
from tests.support.postbox import Postbox, open_postbox

PASSWORD = "correct horse battery"

_addresses = itertools.count(1)


@pytest.fixture(autouse=True)
def keys_of_this_test_only() -> None:
    """What this process remembers of the key table was rolled back with the last test."""
    signing_keys.forget()


@pytest.fixture(autouse=True)
def generous_limits(settings: Any) -> None:
    """Limits have tests of their own; elsewhere they must not add up over a run."""
    settings.RATE_LIMIT_FACTOR = 1000


@cache
def _hash(memory_cost: int) -> str:
    """PASSWORD as it is stored with the parameters of this test."""
    return passwords.hashed(PASSWORD)


@pytest.fixture
def make_user() -> Callable[..., User]:
    """A user whose password is PASSWORD, unless `password=None` says that there is none."""

    def make(name: str, *, pool_id: str | None = None, password: str | None = PASSWORD, **fields: Any) -> User:
        values = {"email": f"{name}@example.com", "name": name.title()} | fields
        user = user_service.create_user(pool_id=pool_id, password=None, actor=audit.SYSTEM, **values)
        if password is not None:
            user.password = _hash(passwords.Argon2idHasher.memory_cost)
            User.objects.filter(pk=user.pk).update(password=user.password)
        return user

    return make


@pytest.fixture
def alice(make_user: Callable[..., User]) -> User:
    return make_user("alice")


@pytest.fixture
def bob(make_user: Callable[..., User]) -> User:
    return make_user("bob")


@pytest.fixture
def charlie(make_user: Callable[..., User]) -> User:
    return make_user("charlie")


@pytest.fixture
def dora(make_user: Callable[..., User]) -> User:
    return make_user("dora")


@pytest.fixture
def production(alice: User) -> Environment:
    """The production environment of alice's project: records only, since nothing here touches its region."""
    return make_environment(alice)


def make_environment(owner: User, **members: User) -> Environment:
    """A project of `owner` with the given members by role, and its production environment."""
    project = Project.objects.create(name="Tracker", region="us-east-1", cluster="us-east-1")
    Member.objects.create(project=project, user=owner, role="owner")
    for role, user in members.items():
        Member.objects.create(project=project, user=user, role=role)
    environment = Environment(project=project, name="production", status="ready")
    environment.pool_id = environment.pk
    environment.save(force_insert=True)
    return environment


def branch_of(environment: Environment, name: str = "preview") -> Environment:
    return Environment.objects.create(
        project=environment.project, name=name, status="ready", parent=environment, pool_id=environment.pool_id
    )


@pytest.fixture
def una(make_user: Callable[..., User], production: Environment) -> User:
    return make_user("una", pool_id=production.pk)


@pytest.fixture
def make_key() -> Callable[..., tuple[ServerKey, str]]:
    def make(environment: Environment, *scopes: str, **fields: Any) -> tuple[ServerKey, str]:
        return user_service.issue_key(
            name="Test key",
            scopes=scopes or ENVIRONMENT_SCOPES,
            authority=permissions.operators(environment_id=environment.pk),
            actor=audit.SYSTEM,
            **fields,
        )

    return make


@dataclass
class SignedIn:
    """A user and the tokens of one session."""

    user: User
    access_token: str
    refresh_token: str


@pytest.fixture
def sign_in(api: Api) -> Callable[..., SignedIn]:
    """Sign in over HTTP, from a separate IP address."""

    def enter(user: User, *, environment: str | None = None, password: str = PASSWORD) -> SignedIn:
        answer = token(api, email=user.email, password=password, environment=environment or user.environment_id)
        assert answer.status == 200, answer.body
        return SignedIn(user, answer.json["access_token"], answer.json["refresh_token"])

    return enter


def session_of(user: User, environment: str | None = None) -> SignedIn:
    """A session as signing in makes it, without the 40 ms of the password."""
    grant = sessions.start(
        user,
        environment_id=environment or user.environment_id,
        device=Device(),
        method="password",
        password_hash=user.password,
    )
    return SignedIn(user, grant.access_token, grant.refresh_token)


def token(api: Api, *, environment: str | None = None, remote_addr: str | None = None, **body: Any) -> Answer:
    """`POST /v1/auth/token`; the grant is `password` unless told otherwise."""
    address = (
        remote_addr or f"10.{next(_addresses) // 65536 % 256}.{next(_addresses) // 256 % 256}.{next(_addresses) % 256}"
    )
    return api.post(
        "/v1/auth/token",
        json={"grant_type": "password"} | body,
        environment=environment,
        remote_addr=address,
    )


@pytest.fixture(scope="session")
def _mail_server() -> Iterator[Postbox]:
    with open_postbox() as postbox:
        yield postbox


@pytest.fixture
def postbox(_mail_server: Postbox, settings: Any) -> Postbox:
    """A real mail server, empty, to which this process sends its emails."""
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", _mail_server.port
    settings.EMAIL_USE_TLS = settings.EMAIL_USE_SSL = False
    _mail_server.messages.clear()
    _mail_server.answers.clear()
    return _mail_server
