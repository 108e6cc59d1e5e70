from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("webhooks", "0009_turns_and_waits")]

    operations = [
        # One that was broken off leaves an invalid index behind, and could not be run again.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS delivery_by_status", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="delivery",
            index=models.Index(fields=["webhook", "status", "-created_at", "-id"], name="delivery_by_status"),
        ),
    ]
