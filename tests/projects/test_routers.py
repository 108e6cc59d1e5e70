"""Which database a model uses: control, or an explicitly named region."""

import pytest
from django.conf import settings
from django.db import router

from accounts.models import User
from platform_site.http.models import IdempotencyRecord
from platform_site.postgres.routers import RegionNotNamed
from projects.models import Project
from rows.models import SchemaVersion

pytestmark = pytest.mark.django_db(databases="__all__")


def test_who_and_where_are_in_control() -> None:
    for model in (User, Project):
        assert router.db_for_read(model) == router.db_for_write(model) == "default"
        assert router.allow_migrate_model("default", model)
        assert not any(router.allow_migrate_model(region, model) for region in settings.REGION_DATABASES)


def test_a_regions_table_is_never_looked_for_without_its_region() -> None:
    with pytest.raises(RegionNotNamed):
        SchemaVersion.objects.first()
    for region in settings.REGION_DATABASES:
        found = SchemaVersion.objects.using(region)
        assert found.db == region
        assert not found.exists()
        assert router.allow_migrate_model(region, SchemaVersion)
    assert not router.allow_migrate_model("default", SchemaVersion)


def test_what_belongs_to_a_row_of_a_region_stays_there() -> None:
    one = SchemaVersion(environment_id="env_x")
    one._state.db = "eu-west-1"
    assert router.db_for_write(SchemaVersion, instance=one) == "eu-west-1"


def test_the_kernels_records_exist_beside_each_effect() -> None:
    assert all(
        router.allow_migrate_model(alias, IdempotencyRecord) for alias in ("default", *settings.REGION_DATABASES)
    )
