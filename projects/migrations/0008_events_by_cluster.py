from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("projects", "0007_cluster_of_events"),
    ]

    operations = [
        # One that was broken off leaves an invalid index behind, and could not be run again.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS control_event_waiting", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="controlevent",
            index=models.Index(
                condition=models.Q(("relayed_at__isnull", True)),
                fields=["cluster", "sequence"],
                name="control_event_waiting",
            ),
        ),
        # The release before finds what waits through the new one: nothing else is in it.
        RemoveIndexConcurrently(model_name="controlevent", name="control_event_due"),
    ]
