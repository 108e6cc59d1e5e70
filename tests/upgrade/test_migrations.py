"""Migrations must leave the previous release working, because its processes run until the last one is replaced
(docs/how-to/operations/upgrades.md)."""

import pytest
from django.db.migrations import operations
from django.db.migrations.loader import MigrationLoader
from django.db.models import NOT_PROVIDED

FIRST_RELEASE = {
    (app, "0001_initial")
    for app in ("accounts", "staff", "projects", "rows", "webhooks", "functions", "api", "platform_site")
}
"""The migrations of v0.1.0. They never change."""
APPS = {app for app, _ in FIRST_RELEASE}
BREAKING = (
    operations.RemoveField,
    operations.RenameField,
    operations.AlterField,
    operations.DeleteModel,
    operations.RenameModel,
    operations.AlterModelTable,
    operations.RemoveIndex,
)
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("accounts", "0002_audit_by_project"): "drops two indexes which longer ones replace, and changes no column",
    ("projects", "0004_branch_reset"): "adds a choice, which changes no column",
    ("functions", "0002_usual_names"): "drops checks that numbers are not negative, and a related name",
    ("rows", "0005_event_without_check"): "drops a check that a number is not negative",
}
"""Migrations with a breaking operation, and why no process of the previous release fails because of it."""

Later = list[tuple[tuple[str, str], operations.base.Operation]]


@pytest.fixture(scope="module")
def later() -> Later:
    """The operations of all migrations after the first release, each with its migration."""
    return [
        (key, operation)
        for key, migration in sorted(MigrationLoader(None).disk_migrations.items())
        if key[0] in APPS and key not in FIRST_RELEASE
        for operation in migration.operations
    ]


def test_the_first_release_is_complete() -> None:
    assert FIRST_RELEASE <= set(MigrationLoader(None).disk_migrations)


def test_no_migration_breaks_the_previous_release(later: Later) -> None:
    assert {key for key, operation in later if isinstance(operation, BREAKING)} == set(EXCEPTIONS)


def test_the_previous_release_can_omit_new_columns(later: Later) -> None:
    for key, operation in later:
        if isinstance(operation, operations.AddField):
            field = operation.field
            optional = field.null or field.db_default is not NOT_PROVIDED or field.many_to_many
            assert optional, f"{key}: {operation.model_name}.{operation.name} needs null=True or a db_default"
