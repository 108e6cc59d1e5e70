from django.apps import AppConfig
from django.db.backends.signals import connection_created


class RowsConfig(AppConfig):
    name = "rows"

    def ready(self) -> None:
        from accounts.keys import publishable_key_exposure
        from platform_site.http import exception_handler
        from platform_site.postgres.row_access import guard_connection
        from platform_site.request_log import names
        from projects.directory.environments import set_schema_version_reader
        from projects.directory.limits import set_usage_counter
        from projects.provisioning import orphaned_rows
        from rows import signal_handlers
        from rows.changes import watched_tables
        from rows.migrate import errors as migrate_errors
        from rows.migrate import versions as schema_versions
        from rows.models import (
            CurrentVersion,
            EventInterest,
            OutboxEvent,
            PendingUserReferences,
            SchemaVersion,
            WatchedTable,
        )
        from rows.outbox import subscriptions
        from rows.query.tables.catalog import existing_tables
        from rows.schema.model import InvalidDocument

        connection_created.connect(guard_connection, dispatch_uid="rows.guard_connection")
        set_schema_version_reader(schema_versions.current_versions)
        set_usage_counter("tables_per_environment", schema_versions.count_tables)
        publishable_key_exposure.register(schema_versions.open_to_anonymous)
        exception_handler.register(InvalidDocument, migrate_errors.to_api_error)
        orphaned_rows.register(
            CurrentVersion, SchemaVersion, EventInterest, OutboxEvent, PendingUserReferences, WatchedTable
        )
        subscriptions.register(watched_tables.patterns_of, is_for_relay=False)
        names.register("table", existing_tables)
        signal_handlers.connect()
