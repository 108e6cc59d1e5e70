from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("functions", "0016_runs_on_events"),
    ]

    operations = [
        # One that was broken off leaves an invalid index behind, and could not be run again.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS run_by_how", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(fields=["function", "trigger", "status", "-created_at", "-id"], name="run_by_how"),
        ),
        # A process of the release before lists by these; without them it reads more and answers the same.
        RemoveIndexConcurrently(model_name="run", name="run_failed"),
        RemoveIndexConcurrently(model_name="run", name="run_scheduled"),
        RemoveIndexConcurrently(model_name="run", name="run_inbound"),
        RemoveIndexConcurrently(model_name="run", name="run_on_event"),
    ]
