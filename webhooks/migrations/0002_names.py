"""Webhooks may have a name."""

from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # for the index

    dependencies = [("webhooks", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="webhook", name="name", field=models.CharField(max_length=48, null=True)
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AddConstraint(
                    model_name="webhook",
                    constraint=models.UniqueConstraint(
                        fields=["environment_id", "name"],
                        condition=models.Q(deleted_at__isnull=True, name__isnull=False),
                        name="webhook_name_unique_in_environment",
                    ),
                )
            ],
            # Without a lock on a table that is written to.
            database_operations=[
                migrations.RunSQL(
                    "CREATE UNIQUE INDEX CONCURRENTLY webhook_name_unique_in_environment"
                    " ON platform.webhooks_webhook (environment_id, name)"
                    " WHERE deleted_at IS NULL AND name IS NOT NULL",
                    "DROP INDEX platform.webhook_name_unique_in_environment",
                )
            ],
        ),
    ]
