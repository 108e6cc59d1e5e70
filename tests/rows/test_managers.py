"""Access to rows is closed unless it was opened explicitly: each form of Django's is tried."""

import gc
import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import ProgrammingError, connections, models, transaction
from django.db.models import Count
from django.shortcuts import get_object_or_404

from platform_site.identity import ids
from platform_site.postgres.row_access import RowsClosed
from rows.query import schema_cache
from rows.query.tables.dynamic_models import RowModel
from rows.query.tables.managers import PrincipalRequired, ReadOnly
from rows.schema.model import IMPLICIT
from tests.support.tenants import ALICE, BOB, OPERATOR, REGION, Tenant
from tests.support.tracker import DOCUMENT

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.fixture
def tenant() -> Tenant:
    tenant = Tenant(DOCUMENT).with_users(ALICE, BOB)
    for who in (ALICE, BOB):
        home = tenant.put("lists", name=f"{who.email}", owner_id=who.user_id)
        tenant.put("tasks", title="x", list_id=home, owner_id=who.user_id)
    return tenant


Model = type[models.Model]
BY_MANAGER: dict[str, Callable[[Any], Any]] = {
    "all": lambda m: list(m.objects.all()),
    "get": lambda m: m.objects.get(pk="x"),
    "filter": lambda m: m.objects.filter(pk="x"),
    "exclude": lambda m: m.objects.exclude(pk="x"),
    "first": lambda m: m.objects.first(),
    "last": lambda m: m.objects.last(),
    "exists": lambda m: m.objects.exists(),
    "contains": lambda m: m.objects.contains(m(pk="x")),
    "count": lambda m: m.objects.count(),
    "aggregate": lambda m: m.objects.aggregate(Count("pk")),
    "annotate": lambda m: m.objects.annotate(n=Count("pk")),
    "in_bulk": lambda m: m.objects.in_bulk(),
    "values": lambda m: m.objects.values(),
    "values_list": lambda m: m.objects.values_list(),
    "iterator": lambda m: list(m.objects.iterator()),
    "order_by": lambda m: m.objects.order_by("pk"),
    "distinct": lambda m: m.objects.distinct(),
    "only": lambda m: m.objects.only("pk"),
    "raw": lambda m: m.objects.raw("SELECT 1"),
    "none": lambda m: m.objects.none(),
    "create": lambda m: m.objects.create(pk="x"),
    "bulk_create": lambda m: m.objects.bulk_create([m(pk="x")]),
    "bulk_update": lambda m: m.objects.bulk_update([m(pk="x")], ["title"]),
    "get_or_create": lambda m: m.objects.get_or_create(pk="x"),
    "update_or_create": lambda m: m.objects.update_or_create(pk="x"),
    "update": lambda m: m.objects.update(title="x"),
    "using": lambda m: m.objects.using(REGION),
    "explain": lambda m: m.objects.explain(),
    "union": lambda m: m.objects.union(m.objects.all()),
    "select_for_update": lambda m: m.objects.select_for_update(),
    "default manager": lambda m: list(m._default_manager.all()),
    "base manager": lambda m: list(m._base_manager.all()),
    "get_object_or_404": lambda m: get_object_or_404(m, pk="x"),
    "refresh_from_db": lambda m: m(pk="x").refresh_from_db(),
    "save": lambda m: m(pk="x").save(using=REGION),
    "validate_unique": lambda m: m(pk="x").validate_unique(),
    "full_clean": lambda m: m(pk="x", title="x", list_id="x", owner_id="x").full_clean(),
}
PAST_MANAGER: dict[str, Callable[[Any], Any]] = {
    "a queryset": lambda m: list(models.QuerySet(m, using=REGION)),
    "a queryset that counts": lambda m: models.QuerySet(m, using=REGION).count(),
    "a queryset that updates": lambda m: models.QuerySet(m, using=REGION).update(title="stolen"),
    "a queryset that deletes": lambda m: models.QuerySet(m, using=REGION).delete(),
    "a new row": lambda m: models.QuerySet(m, using=REGION).create(pk="x", title="x", list_id="x", owner_id="x"),
    "an instance that deletes itself": lambda m: m(pk="x").delete(using=REGION),
    "raw SQL": lambda m: list(models.QuerySet(m, using=REGION).raw(f"SELECT * FROM {m._meta.db_table}")),
}


@pytest.mark.parametrize("how", BY_MANAGER)
def test_without_a_principal_the_manager_gives_nothing(tenant: Tenant, how: str) -> None:
    with pytest.raises(PrincipalRequired), transaction.atomic(using=REGION):
        BY_MANAGER[how](tenant.compiled.models["tasks"])
    assert len(tenant.rows(OPERATOR, "tasks")) == 2


@pytest.mark.parametrize("how", PAST_MANAGER)
def test_past_the_manager_the_connection_refuses(tenant: Tenant, how: str) -> None:
    with pytest.raises((RowsClosed, PrincipalRequired)), transaction.atomic(using=REGION):
        PAST_MANAGER[how](tenant.compiled.models["tasks"])
    assert [row["title"] for row in tenant.rows(OPERATOR, "tasks")] == ["x", "x"]


@pytest.mark.parametrize(
    "write",
    [
        lambda rows: rows.update(title="stolen"),
        lambda rows: rows.delete(),
        lambda rows: rows.create(pk="x"),
        lambda rows: rows.bulk_create([]),
        lambda rows: rows.bulk_update([], ["title"]),
        lambda rows: rows.get_or_create(pk="x"),
        lambda rows: rows.update_or_create(pk="x"),
        lambda rows: rows._raw_delete(REGION),
    ],
)
def test_querysets_only_read(tenant: Tenant, write: Callable[[Any], Any]) -> None:
    tasks = tenant.compiled.models["tasks"]
    assert tasks.unruled.using(REGION).count() == 2
    for rows in (tasks.objects.visible_to(tenant.compiled.role_view("user")), tasks.unruled.using(REGION)):
        with pytest.raises(ReadOnly):
            write(rows)


def test_queryset_without_values_cannot_run(tenant: Tenant) -> None:
    """What is made to be compiled has no values; running it must fail, not match null."""
    role_view = tenant.compiled.role_view("user")
    with pytest.raises(ProgrammingError, match="cannot adapt"), transaction.atomic(using=REGION):
        list(tenant.compiled.models["tasks"].objects.visible_to(role_view))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """How many environments this process keeps for the length of a test."""
    _evict_all()
    monkeypatch.setattr(schema_cache, "MAX_ENVIRONMENTS", 20)
    yield 20
    _evict_all()


def _evict_all() -> None:
    for environment_id in list(schema_cache._known):
        schema_cache.evict(environment_id)


def _models_of(environment_ids: Collection[str]) -> list[type[RowModel]]:
    """Every model class of these environments that is anywhere in this process' memory."""
    gc.collect()
    return [one for one in RowModel.__subclasses__() if one._meta.db_table.split('"')[1] in environment_ids]


@pytest.mark.exhaustive
def test_of_very_many_environments_the_last_are_kept_and_the_others_freed(few: int) -> None:
    """Whatever was asked of them: what is remembered of a statement or a filter must not hold an environment. Models are
    kept of none: they are for compiling."""
    tenants = [Tenant(DOCUMENT) for _ in range(3 * few)]
    known = []
    for tenant in tenants:
        tenant.with_users(ALICE).put("lists", id="lst_1", name="Home", owner_id=ALICE.user_id)
        for _ in range(2):
            assert tenant.rows(ALICE, "tasks", where={"list.name": "Home"}, order="title.desc", withs="list") == []
        known.append(weakref.ref(tenant.compiled))
    assert _models_of({tenant.environment.environment_id for tenant in tenants}) == []
    assert [ref() is not None for ref in known] == [False] * 2 * few + [True] * few
    assert tenants[-1].rows(ALICE, "tasks", where={"title": "x"}) == []  # a new shape of one that is kept
    assert tenants[0].rows(ALICE, "lists")[0]["id"] == "lst_1"  # and is loaded again


def test_an_environment_goes_without_a_collector(tenant: Tenant) -> None:
    """Whatever was asked of it there is no circle in it: one for each request to a cold environment made every hundredth
    of them wait for a full collection."""
    tenant.put("lists", id="lst_1", name="Home", owner_id=ALICE.user_id)
    for who, owner in ((ALICE, {}), (OPERATOR, {"owner_id": ALICE.user_id})):
        made = tenant.insert(who, "tasks", title="One", list_id="lst_1", **owner)["id"]
        tenant.update(who, "tasks", made, title="Two")
        assert tenant.rows(who, "tasks", where={"list.name": "Home"}, order="title.desc", withs="list")
        tenant.delete(who, "tasks", made)
    assert tenant.compiled.models["tasks"].unruled.using(REGION).exists()
    compiled = tenant.compiled
    known = [weakref.ref(each) for each in (compiled, compiled.rules, compiled.role_view("user"))]
    gc.collect()  # models, which go in circles by nature, but hold nothing that is not theirs
    gc.disable()
    try:
        del compiled
        schema_cache.evict(tenant.environment.environment_id)
        assert [ref() for ref in known] == [None] * 3
    finally:
        gc.enable()


def test_large_environments_are_kept_in_smaller_numbers(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tenants = [Tenant(DOCUMENT) for _ in range(5)]
    columns = tenants[0].compiled.column_count
    assert columns > len(DOCUMENT["tables"]) * len(IMPLICIT)
    monkeypatch.setattr(schema_cache, "MAX_COLUMNS", 2 * columns)
    known = [weakref.ref(tenant.compiled) for tenant in tenants]
    schema_cache.reload(tenants[4].environment)  # the one that was there counts no more
    gc.collect()
    assert [ref() is not None for ref in known] == [False, False, False, True, False]
    monkeypatch.setattr(schema_cache, "MAX_COLUMNS", 1)
    assert schema_cache.compiled_schema(tenants[0].environment) is schema_cache.compiled_schema(
        tenants[0].environment
    )  # one there always is
    schema_cache.evict(tenants[0].environment.environment_id)
    assert not schema_cache._known


@pytest.mark.exhaustive
def test_a_model_is_made_when_it_is_asked_for_and_once_for_all_threads(tenant: Tenant) -> None:
    compiled = schema_cache.reload(tenant.environment)
    assert _models_of({compiled.environment_id}) == []
    begin = threading.Barrier(8)

    def ask(_: int) -> type[RowModel]:
        begin.wait(10)
        return compiled.models["tasks"]

    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(ask, range(8)))
    assert len(made) == 1
    assert set(_models_of({compiled.environment_id})) == made
    with pytest.raises(KeyError):
        compiled.models["nothing"]


def test_an_environment_without_a_version_has_no_tables() -> None:
    environment = Tenant().environment
    assert schema_cache.compiled_schema(environment).version == 0
    assert not schema_cache.compiled_schema(environment).schema.tables
    schema_cache.evict(environment.environment_id)


def test_models_of_two_environments_never_meet() -> None:
    one, other = Tenant(DOCUMENT), Tenant(DOCUMENT)
    for first, second in ((one, other), (other, one)):
        sql = str(first.compiled.models["tasks"].objects.visible_to(first.compiled.role_view("user")).query)
        assert first.environment.environment_id in sql
        assert second.environment.environment_id not in sql


def test_row_access_check_survives_reconnecting_in_every_region() -> None:
    table = f'"{ids.new("env")}"."tasks"'
    for alias in ("us-east-1", "eu-west-1", "ap-southeast-1"):
        with pytest.raises(RowsClosed), connections[alias].cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table}")
