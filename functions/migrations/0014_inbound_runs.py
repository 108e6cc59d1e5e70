from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("functions", "0013_inbound_addresses"),
    ]

    operations = [
        # One that was broken off leaves an invalid index behind, and could not be run again.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS run_inbound", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                condition=models.Q(("trigger", "inbound")),
                fields=["function", "-created_at", "-id"],
                name="run_inbound",
            ),
        ),
    ]
