"""The quota of users: exact whoever makes and deletes them, and without counting a pool for each."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from accounts import audit
from accounts.models import PoolSize, ServerKey, User
from accounts.signal_handlers import delete_pool
from accounts.users import service as user_service
from accounts.users import user_counts
from platform_site.http.errors import QuotaExceeded
from platform_site.identity import signals
from projects.models import Environment
from tests.accounts.conftest import make_environment
from tests.support.client import Api

pytestmark = pytest.mark.django_db(databases="__all__")


def make(pool_id: str | None, name: Any, most: int | None = None) -> User:
    email = f"{name}@example.com"
    return user_service.create_user(pool_id=pool_id, email=email, password=None, actor=audit.SYSTEM, most=most)


def at_once(*verbs: Callable[[], Any]) -> list[Any]:
    """What became of each, all begun at the same moment; QuotaExceeded is an outcome."""
    barrier = Barrier(len(verbs))

    def attempt(verb: Callable[[], Any]) -> Any:
        barrier.wait(20)
        try:
            return verb()
        except QuotaExceeded as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(len(verbs)) as threads:
        return [each.result(60) for each in [threads.submit(attempt, verb) for verb in verbs]]


@pytest.mark.exhaustive
@pytest.mark.django_db(databases="__all__", transaction=True)
def test_thirty_parallel_users_at_a_quota_of_twenty_are_twenty(alice: User) -> None:
    pool = make_environment(alice).pk
    outcomes = at_once(*[lambda number=number: make(pool, number, 20) for number in range(30)])
    assert sum(isinstance(each, User) for each in outcomes) == 20
    assert User.objects.in_pool(pool).count() == user_counts.users_of(pool) == 20
    at_once(*[lambda each=each: user_service.delete_user(each, actor=audit.SYSTEM) for each in outcomes if hasattr(each, "pk")])  # fmt: skip
    assert User.objects.in_pool(pool).count() == user_counts.users_of(pool) == 0
    make(pool, "again", 1)


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_user_deletion_does_not_wait_for_rows(alice: User) -> None:
    """They may be thousands, in another database: their owner would keep other people from signing up."""
    pool = make_environment(alice).pk
    goes, made = make(pool, "goes"), []

    def meanwhile(**_: Any) -> None:
        made.extend(at_once(lambda: make(pool, "comes", 2)))

    signals.user_deleted.connect(meanwhile)
    try:
        user_service.delete_user(goes, actor=audit.SYSTEM)
    finally:
        signals.user_deleted.disconnect(meanwhile)
    assert list(User.objects.in_pool(pool)) == made
    assert user_counts.users_of(pool) == 1


def test_a_user_is_made_without_counting_the_pool(
    api: Api, production: Environment, make_key: Callable[..., tuple[ServerKey, str]]
) -> None:
    _, secret = make_key(production)

    def make_one(email: str) -> int:
        return api.post("/v1/users", token=secret, json={"email": email, "password": "correct horse battery"}).status

    assert make_one("first@example.com") == 201
    with CaptureQueriesContext(connection) as said:
        assert make_one("second@example.com") == 201
    assert any("accounts_poolsize" in query["sql"] for query in said)
    assert not any("COUNT(" in query["sql"] and "accounts_user" in query["sql"] for query in said)
    assert api.get("/v1/limits", token=secret).json["limits"]["app_users_per_environment"]["used"] == 2


def test_users_that_no_verb_of_ours_made_or_deleted_count_too(production: Environment) -> None:
    """Written directly, for example in a shell."""
    before = {*PoolSize.objects.values_list("pk", flat=True)}
    User.objects.bulk_create([User(environment_id=production.pk, email=f"{each}@example.com") for each in range(5)])
    User.objects.create(email="account@example.com")
    assert user_counts.users_of(production.pk) == 5
    User.objects.filter(environment_id=production.pk, email__in=["0@example.com", "1@example.com"]).delete()
    assert user_counts.users_of(production.pk) == 3
    with pytest.raises(QuotaExceeded):
        make(production.pk, "one-more", 3)
    assert User.objects.in_pool(production.pk).count() == 3
    made = {*PoolSize.objects.values_list("pk", flat=True)} - before
    assert made == {production.pk}, "platform accounts have none"


def test_who_was_not_made_after_all_does_not_count(production: Environment) -> None:
    make(production.pk, "a", 10)
    with transaction.atomic():
        make(production.pk, "b", 10)
        transaction.set_rollback(True)
    with pytest.raises(user_service.ValidationFailed):
        make(production.pk, "A", 10)
    assert user_counts.users_of(production.pk) == 1


@pytest.mark.exhaustive
@pytest.mark.django_db(databases="__all__", transaction=True)
def test_a_pool_from_before_is_counted_once_while_users_come_and_go(alice: User) -> None:
    pool = make_environment(alice).pk
    PoolSize.objects.filter(pk=pool).delete()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE accounts_user DISABLE TRIGGER USER")
        before = [make(pool, f"old{number}") for number in range(12)]
        cursor.execute("ALTER TABLE accounts_user ENABLE TRIGGER USER")
    assert not PoolSize.objects.filter(pk=pool).exists()
    outcomes = at_once(
        *[lambda each=each: user_service.delete_user(each, actor=audit.SYSTEM) for each in before[:4]],
        *[lambda number=number: make(pool, f"new{number}", 16) for number in range(12)],
        *[lambda number=number: make(pool, f"terminal{number}") for number in range(4)],
        lambda: user_counts.users_of(pool),
    )
    size = PoolSize.objects.get(pk=pool)
    assert size.is_counted
    assert size.users == User.objects.in_pool(pool).count()
    assert any(isinstance(each, User) for each in outcomes)


def test_a_pool_that_goes_leaves_no_row(production: Environment) -> None:
    make(production.pk, "a", 10)
    delete_pool(environment_id=production.pk)
    assert not PoolSize.objects.filter(pk=production.pk).exists()
    assert not User.objects.in_pool(production.pk).exists()
