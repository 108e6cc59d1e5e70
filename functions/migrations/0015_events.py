import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("functions", "0014_inbound_runs"),
    ]

    operations = [
        migrations.CreateModel(
            name="Heard",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("environment_id", models.CharField(max_length=30)),
                ("function_id", models.CharField(max_length=30)),
                ("event_id", models.CharField(max_length=30)),
                ("sequence", models.BigIntegerField()),
            ],
            options={
                "indexes": [models.Index(fields=["environment_id", "sequence"], name="heard_in_order")],
                "constraints": [models.UniqueConstraint(fields=("event_id", "function_id"), name="heard_once")],
            },
        ),
        migrations.AddField(
            model_name="function",
            name="events",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=120), null=True, size=None
            ),
        ),
        migrations.AddField(
            model_name="function",
            name="events_stopped",
            field=models.CharField(
                choices=[
                    ("caller_gone", "Caller Gone"),
                    ("copied", "Copied"),
                    ("operator", "Operator"),
                    ("unreadable", "Unreadable"),
                ],
                max_length=20,
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="function",
            name="events_kind",
            field=models.CharField(max_length=10, null=True),
        ),
        migrations.AddField(
            model_name="function",
            name="events_id",
            field=models.CharField(max_length=30, null=True),
        ),
        migrations.AddField(
            model_name="run",
            name="event_id",
            field=models.CharField(max_length=30, null=True),
        ),
        migrations.AlterField(
            model_name="run",
            name="trigger",
            field=models.CharField(
                choices=[("call", "Call"), ("schedule", "Schedule"), ("inbound", "Inbound"), ("event", "Event")],
                db_default="call",
                max_length=10,
            ),
        ),
        migrations.AddIndex(
            model_name="function",
            index=models.Index(
                condition=models.Q(("events__isnull", False), ("events_stopped", None)),
                fields=["environment_id"],
                name="function_hears",
            ),
        ),
        migrations.AddConstraint(
            model_name="function",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("events", None),
                    ("events_stopped__isnull", False),
                    models.Q(("events_id__isnull", False), ("events_kind__isnull", False)),
                    _connector="OR",
                ),
                name="function_hears_as_somebody",
            ),
        ),
    ]
