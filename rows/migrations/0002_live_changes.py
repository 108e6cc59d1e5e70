"""Live changes: events know their transaction, and tables can be watched."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models

import rows.outbox.models


class Migration(migrations.Migration):
    atomic = False  # for the index

    dependencies = [("rows", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="WatchedTable",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment_id", models.CharField(max_length=30)),
                ("table_name", models.CharField(max_length=48)),
                ("generation", models.CharField(max_length=32)),
                (
                    "transaction",
                    rows.outbox.models.TransactionIdField(
                        db_default=rows.outbox.models.CurrentTransaction(), editable=False
                    ),
                ),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["expires_at"], name="watched_table_expiry")],
                "constraints": [
                    models.UniqueConstraint(fields=("environment_id", "table_name"), name="watched_table_once")
                ],
            },
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AddField(
                    model_name="outboxevent",
                    name="transaction",
                    field=rows.outbox.models.TransactionIdField(
                        db_default=rows.outbox.models.CurrentTransaction(), editable=False, null=True
                    ),
                )
            ],
            # In two steps: with its default at once the whole table would be written anew.
            database_operations=[
                migrations.RunSQL(
                    "ALTER TABLE platform.rows_outboxevent ADD COLUMN transaction xid8;"
                    "ALTER TABLE platform.rows_outboxevent ALTER COLUMN transaction SET DEFAULT pg_current_xact_id()",
                    "ALTER TABLE platform.rows_outboxevent DROP COLUMN transaction",
                )
            ],
        ),
        AddIndexConcurrently(
            model_name="outboxevent",
            index=models.Index(fields=["transaction", "environment_id"], name="outbox_of_transaction"),
        ),
    ]
