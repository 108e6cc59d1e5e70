from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("rows", "0007_leaving_users"),
    ]

    operations = [
        # One that was broken off leaves an invalid index behind, and could not be run again.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS outbox_due_by_environment", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="outboxevent",
            index=models.Index(
                condition=models.Q(("relayed_at__isnull", True)),
                fields=["environment_id", "sequence"],
                name="outbox_due_by_environment",
            ),
        ),
    ]
