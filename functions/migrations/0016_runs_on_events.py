from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models
from django.db.models.functions import Coalesce


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("functions", "0015_events"),
    ]

    operations = [
        # One that was broken off leaves an invalid index behind, and could not be run again.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS run_once_per_event", migrations.RunSQL.noop),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(
                    "CREATE UNIQUE INDEX CONCURRENTLY run_once_per_event ON functions_run (event_id, function_id) "
                    "WHERE event_id IS NOT NULL",
                    "DROP INDEX CONCURRENTLY IF EXISTS run_once_per_event",
                ),
            ],
            state_operations=[
                migrations.AddConstraint(
                    model_name="run",
                    constraint=models.UniqueConstraint(
                        condition=models.Q(("event_id__isnull", False)),
                        fields=("event_id", "function"),
                        name="run_once_per_event",
                    ),
                ),
            ],
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS run_on_event", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                condition=models.Q(("trigger", "event")),
                fields=["function", "-created_at", "-id"],
                name="run_on_event",
            ),
        ),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS run_turn_of_crowd", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                models.F("environment_id"),
                models.ExpressionWrapper(
                    models.Q(("caller_kind", "anonymous"), ("trigger", "event"), _connector="OR"),
                    output_field=models.BooleanField(),
                ),
                Coalesce("turn_at", "created_at"),
                condition=models.Q(("phase", "queued")),
                name="run_turn_of_crowd",
            ),
        ),
        RemoveIndexConcurrently(model_name="run", name="run_in_turn"),
    ]
