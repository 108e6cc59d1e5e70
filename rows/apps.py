from django.apps import AppConfig
from django.db.backends.signals import connection_created


class RowsConfig(AppConfig):
    name = "rows"

    def ready(self) -> None:
        from accounts.keys import publishable_key_exposure
        from platform_site.postgres.prepared import guard_connection
        from projects.directory.environments import set_schema_version_reader
        from projects.directory.limits import set_usage_counter
        from projects.provisioning import orphaned_rows
        from rows import signal_handlers
        from rows.console import admin  # noqa: F401 - registers the pages of the console
        from rows.migrate import errors as migrate_errors
        from rows.migrate import service as schema_service
        from rows.models import CurrentVersion, DepartureDue, EventInterest, OutboxEvent, SchemaVersion

        connection_created.connect(guard_connection, dispatch_uid="rows.guard_connection")
        set_schema_version_reader(schema_service.current_versions)
        set_usage_counter("tables_per_environment", schema_service.count_tables)
        publishable_key_exposure.register(tables=schema_service.open_to_strangers)
        migrate_errors.register()
        orphaned_rows.register(CurrentVersion, SchemaVersion, EventInterest, OutboxEvent, DepartureDue)
        signal_handlers.connect()
