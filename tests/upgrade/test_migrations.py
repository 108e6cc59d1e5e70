"""Migrations leave the release before them working: it runs on until the last process is replaced (docs/how-to/operations/upgrades.md).

Held to here: no migration after the first release takes away or renames what an older process names in its statements,
and no column is added that an older process could not leave out.
"""

import pytest
from django.db.migrations import operations
from django.db.migrations.loader import MigrationLoader
from django.db.models import NOT_PROVIDED

FIRST_RELEASE = {
    ("accounts", "0001_initial"),
    ("projects", "0001_initial"),
    ("rows", "0001_initial"),
    ("rows", "0002_versions_are_immutable"),
    ("rows", "0003_outbox"),
    ("webhooks", "0001_initial"),
    ("functions", "0001_initial"),
    ("api", "0001_initial"),
}
OURS = {app for app, _ in FIRST_RELEASE}
BREAKING = (
    operations.RemoveField,
    operations.RenameField,
    operations.AlterField,
    operations.DeleteModel,
    operations.RenameModel,
    operations.AlterModelTable,
)
EXCEPTIONS = {
    ("accounts", "0004_profile_fields"): "renames a column of a table that came in the same release",
    (
        "accounts",
        "0005_identity_linked",
    ): "another kind of e-mail: PostgreSQL is told nothing; a worker of the release before leaves it to one of this",
    ("accounts", "0006_project_suspended"): "two more kinds of e-mail, as above",
    ("accounts", "0007_member_invitations"): "another one, as above",
    (
        "functions",
        "0005_deleted_functions",
    ): "what is deleted has no environment, and the release before finds functions by theirs; its figures of a region"
    " may miss a look for as long as there are runs of the last minutes, which go first",
    (
        "functions",
        "0013_inbound_addresses",
    ): "another way for a run to come about: PostgreSQL is told nothing, and a worker of the release before executes it"
    " as any that is not a schedule's",
    (
        "functions",
        "0015_events",
    ): "another way for a run to come about: PostgreSQL is told nothing; a worker of the release before executes one"
    " like any that is queued",
}
"""Migrations that may, and why no process of the release before minds."""
INDEXES = {
    "delivery_due": "what is due is found by that of each webhook, which came in its place",
    "delivery_held": "what a webhook has held is found by one with an order, which came in its place",
    "delivery_in_order": "the order of a row's deliveries is that of `delivery_row_order`, and then `delivery_turn`",
    "run_executing": "what executes in an environment is found by `run_slot_once`",
    "run_queued": "a worker of the first release reads what is queued to find the oldest, as long as it still runs",
}
"""Indexes of the first release that went in the next one, and what its processes do without."""


@pytest.fixture(scope="module")
def later() -> list[tuple[tuple[str, str], operations.base.Operation]]:
    """The operations of all migrations after the first release, each with its migration."""
    loader = MigrationLoader(None)
    return [
        (key, operation)
        for key, migration in sorted(loader.disk_migrations.items())
        if key[0] in OURS and key not in FIRST_RELEASE
        for operation in migration.operations
    ]


def test_the_first_releases_migrations_are_all_there() -> None:
    assert FIRST_RELEASE <= set(MigrationLoader(None).disk_migrations)


def test_nothing_is_taken_away_or_renamed_under_a_running_release(later: list[tuple[tuple[str, str], object]]) -> None:
    for key, operation in later:
        if key not in EXCEPTIONS:
            assert not isinstance(operation, BREAKING), f"{key}: {operation}"


def test_an_older_process_can_leave_out_every_new_column(later: list[tuple[tuple[str, str], object]]) -> None:
    for key, operation in later:
        if isinstance(operation, operations.AddField):
            field = operation.field
            optional = field.null or field.db_default is not NOT_PROVIDED or field.many_to_many
            assert optional, f"{key}: {operation.model_name}.{operation.name} needs null=True or a db_default"


def test_an_index_that_a_release_has_goes_only_where_its_processes_do_without() -> None:
    loader = MigrationLoader(None)
    first = loader.project_state(sorted(FIRST_RELEASE))
    theirs = {index.name for model in first.models.values() for index in model.options.get("indexes", ())}
    gone = {
        operation.name
        for key, migration in loader.disk_migrations.items()
        if key[0] in OURS and key not in FIRST_RELEASE
        for operation in migration.operations
        if isinstance(operation, operations.RemoveIndex)
    }
    assert gone & theirs == set(INDEXES)


def test_exceptions_are_those_that_there_are(later: list[tuple[tuple[str, str], object]]) -> None:
    breaking = {key for key, operation in later if isinstance(operation, BREAKING)}
    assert set(EXCEPTIONS) == breaking
