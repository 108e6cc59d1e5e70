from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("functions", "0018_weights"),
    ]

    operations = [
        # One that was broken off leaves an invalid index behind, and could not be run again.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS run_weighed", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                condition=models.Q(("weight__isnull", False)),
                fields=["environment_id", "function", "id"],
                include=["weight"],
                name="run_weighed",
            ),
        ),
    ]
