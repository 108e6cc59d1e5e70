from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("functions", "0019_runs_weighed"),
    ]

    operations = [
        # One that was broken off leaves an invalid index behind, and could not be run again.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS run_of_user", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                fields=["function", "caller_id", "-created_at", "-id"],
                condition=models.Q(caller_kind="user"),
                name="run_of_user",
            ),
        ),
    ]
