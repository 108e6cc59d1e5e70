from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models.lookups import Exact


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("functions", "0007_runs_of_schedules"),
    ]

    operations = [
        # One that was broken off leaves an invalid index behind, and could not be run again.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS run_turn", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                models.F("environment_id"),
                Exact(models.F("caller_kind"), models.Value("anonymous")),
                models.F("created_at"),
                condition=models.Q(("phase", "queued")),
                name="run_turn",
            ),
        ),
    ]
