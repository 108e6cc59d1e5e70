import django.db.models.functions.comparison
from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("webhooks", "0008_orders")]

    operations = [
        # One that was broken off leaves an invalid index behind, and could not be run again.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS delivery_turn", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="delivery",
            index=models.Index(
                condition=models.Q(("status__in", ["pending", "held"]), ("subject__isnull", False)),
                fields=["webhook", "subject", "sequence"],
                name="delivery_turn",
            ),
        ),
        RemoveIndexConcurrently(model_name="delivery", name="delivery_row_order"),
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS delivery_held_since", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="delivery",
            index=models.Index(
                models.F("webhook"),
                django.db.models.functions.comparison.Greatest("created_at", "next_attempt_at"),
                condition=models.Q(("status", "held")),
                name="delivery_held_since",
            ),
        ),
    ]
