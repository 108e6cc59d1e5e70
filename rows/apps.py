from django.apps import AppConfig
from django.db.backends.signals import connection_created


class RowsConfig(AppConfig):
    name = "rows"

    def ready(self) -> None:
        from accounts import openings
        from projects import leftovers
        from projects.environments import set_schema_version_reader
        from projects.limits import set_usage_counter
        from rows import receivers, schema_answers, schemas
        from rows.execution import guard_connection
        from rows.models import CurrentVersion, DepartureDue, EventInterest, OutboxEvent, SchemaVersion

        connection_created.connect(guard_connection, dispatch_uid="rows.guard_connection")
        set_schema_version_reader(schemas.current_versions)
        set_usage_counter("tables_per_environment", schemas.count_tables)
        openings.register(tables=schemas.open_to_strangers)
        schema_answers.register()
        leftovers.register(CurrentVersion, SchemaVersion, EventInterest, OutboxEvent, DepartureDue)
        receivers.connect()
