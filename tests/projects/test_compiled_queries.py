"""A question that is put together once says the same as one that is put together each time."""

import pytest
from django.db import DEFAULT_DB_ALIAS, connection
from django.test.utils import CaptureQueriesContext

from accounts.models import ServerKey, User
from platform_site.fastpath.compiled_queryset import Compiled
from projects.models import Environment
from tests.projects.conftest import environment_of, key_for, make_project

pytestmark = pytest.mark.django_db(databases="__all__", transaction=True)


def test_each_call_has_the_row_of_its_own_values(alice: User) -> None:
    asked = Compiled(lambda pk, name: Environment.objects.filter(pk=pk, name=name).values_list("pk", "name"))
    environments = list(Environment.objects.filter(project=make_project(alice)))
    assert len(environments) > 1
    for each in (*environments, *environments):
        assert asked.first(each.pk, each.name) == (each.pk, each.name)
        assert asked.first(each.pk, "nobody's") is None
    assert asked.first("<pk>", "<name>") is None, "a value is never taken for a mark"
    assert asked.first("' OR true --", environments[0].name) is None


@pytest.mark.usefixtures("with_fastpath")
def test_it_is_put_together_once_and_asks_once() -> None:
    made: list[str] = []

    def make(pk: str) -> object:
        made.append(pk)
        return ServerKey.objects.filter(pk=pk).values_list("name")

    asked = Compiled(make)  # type: ignore[arg-type]
    with CaptureQueriesContext(connection) as queries:
        for number in range(5):
            assert asked.first(f"key_{number}") is None
    assert (len(made), len(queries)) == (1, 5)
    assert connection.alias == DEFAULT_DB_ALIAS


def test_what_changes_between_two_calls_is_seen(alice: User) -> None:
    environment = environment_of(make_project(alice))
    key_for(environment.pk, "rows:read")
    asked = Compiled(lambda pk: ServerKey.objects.filter(environment_id=pk, revoked_at=None).values_list("scopes"))
    assert asked.first(environment.pk) == (["rows:read"],)
    ServerKey.objects.filter(environment_id=environment.pk).delete()
    assert asked.first(environment.pk) is None
