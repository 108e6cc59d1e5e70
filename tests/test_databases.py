"""The four databases of a test run, migrated as `manage.py migrate` does."""

from types import SimpleNamespace

import pytest
from django.conf import LazySettings, settings
from django.core.management import call_command
from django.db import OperationalError, connections

from accounts.models import User
from platform_site.embedded import postgres as embedded_postgres
from platform_site.postgres import direct, replicas
from platform_site.settings import databases


@pytest.mark.django_db(databases="__all__")
def test_control_tables_live_in_control_and_regions_have_their_schema() -> None:
    assert User.objects.count() == 0
    for region in ("us-east-1", "eu-west-1", "ap-southeast-1"):
        with connections[region].cursor() as cursor:
            cursor.execute("SHOW search_path")
            assert cursor.fetchone() == ("platform",)
            cursor.execute("SELECT to_regclass('platform.accounts_user'), to_regnamespace('platform')::text")
            assert cursor.fetchone() == (None, "platform")


@pytest.mark.django_db(databases="__all__")
def test_migrate_without_a_database_checks_and_plans_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("migrate", "--plan", skip_checks=False)
    told = capsys.readouterr().out
    for name in ("default", "us-east-1", "eu-west-1", "ap-southeast-1"):
        assert f"Database {name}:" in told


def test_the_random_password_of_the_embedded_server_is_hashed_once() -> None:
    with embedded_postgres.connect(settings.LAYOUT) as connection:
        stored = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolname = 'platform'").fetchone()
    assert stored is not None
    assert str(stored[0]).startswith("SCRAM-SHA-256$1:")


@pytest.mark.parametrize("fault", [OSError("too many open files"), OperationalError("gone"), ValueError("odd")])
def test_replica_monitor_survives_any_exception(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    class Enough(BaseException):
        pass

    looks: list[None] = []

    def look() -> None:
        looks.append(None)
        if len(looks) == 3:
            raise Enough
        raise fault

    def close() -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(replicas, "_CHECKS_PER_LAG_LIMIT", 1e9)  # no pause between them
    with pytest.raises(Enough):
        replicas._watch(SimpleNamespace(check=look, connection=SimpleNamespace(close=close)))  # type: ignore[arg-type]


def test_settings_of_a_url_do_not_replace_those_of_the_session() -> None:
    url = settings.LAYOUT.postgres_url("us_east_1")
    found = databases._database(
        "X_URL", f"{url}&options=-c%20geqo%3Doff&sslmode=disable", "platform", prepare_threshold=2
    )
    assert found["OPTIONS"]["sslmode"] == "disable"
    assert found["OPTIONS"]["options"].startswith("-c geqo=off -c search_path=platform -c statement_timeout=")


@pytest.mark.django_db(databases=["us-east-1"])
def test_a_direct_connection_has_the_parameters_of_its_own_url(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = connections["us-east-1"].settings_dict["NAME"]
    url = settings.LAYOUT.postgres_url(name) + "&application_name=direct&options=-c%20search_path%3Dpublic"
    monkeypatch.setenv("REGION_US_EAST_1_DIRECT_URL", url)
    settings.DIRECT_DATABASES = databases._direct_databases()
    with direct.own_connection("us-east-1") as own, own.cursor() as cursor:
        cursor.execute("SELECT current_setting('application_name'), current_setting('search_path')")
        assert cursor.fetchone() == ("direct", "platform")
