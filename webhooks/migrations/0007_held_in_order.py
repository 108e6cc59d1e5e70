from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("webhooks", "0006_lost_and_failed"),
    ]

    operations = [
        # One that was broken off leaves an invalid index behind, and could not be run again.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS delivery_held_order", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("status", "held")), fields=["webhook", "sequence"], name="delivery_held_order"
            ),
        ),
        RemoveIndexConcurrently(model_name="delivery", name="delivery_held"),
    ]
