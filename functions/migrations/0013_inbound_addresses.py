from functools import partial

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import platform_site.identity.ids


class Migration(migrations.Migration):

    dependencies = [
        ("functions", "0012_in_turn"),
    ]

    operations = [
        migrations.AlterField(
            model_name="run",
            name="trigger",
            field=models.CharField(
                choices=[("call", "Call"), ("schedule", "Schedule"), ("inbound", "Inbound")],
                db_default="call",
                max_length=10,
            ),
        ),
        migrations.CreateModel(
            name="InboundAddress",
            fields=[
                (
                    "id",
                    models.CharField(
                        default=partial(platform_site.identity.ids.new, "inb"),
                        editable=False,
                        max_length=30,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("token_hash", models.BinaryField(unique=True)),
                ("label", models.CharField(blank=True, max_length=100)),
                ("is_async", models.BooleanField()),
                ("runs_as_kind", models.CharField(max_length=10)),
                ("runs_as_id", models.CharField(max_length=30)),
                ("uses", models.BigIntegerField(db_default=0)),
                ("last_used_at", models.DateTimeField(null=True)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False),
                ),
                (
                    "function",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="inbound_addresses",
                        to="functions.function",
                    ),
                ),
            ],
        ),
        # Django's own would not cascade, and the release before deletes functions without asking for their addresses.
        migrations.RunSQL(
            "ALTER TABLE functions_inboundaddress ADD CONSTRAINT inbound_address_goes_with_its_function"
            " FOREIGN KEY (function_id) REFERENCES functions_function (id)"
            " ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED",
            "ALTER TABLE functions_inboundaddress DROP CONSTRAINT inbound_address_goes_with_its_function",
        ),
    ]
