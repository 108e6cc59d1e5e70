"""The request log. Daily partitions are not created here: a recorded migration would have the days of its recording."""

import django.contrib.postgres.fields
from django.db import migrations, models

_TABLES = """
CREATE TABLE request_log_entry (
    id bigserial NOT NULL,
    at timestamp with time zone NOT NULL,
    keep_days smallint NOT NULL,
    environment_id varchar(30),
    request_id varchar(64) NOT NULL,
    method varchar(10) NOT NULL,
    route varchar(200) NOT NULL,
    table_name varchar(63),
    function_name varchar(63),
    status smallint NOT NULL,
    code varchar(60),
    field_codes varchar(60)[] NOT NULL,
    duration_ms double precision NOT NULL,
    caller_kind varchar(10),
    caller_id varchar(30)
) PARTITION BY LIST (keep_days);
CREATE TABLE request_log_1d PARTITION OF request_log_entry FOR VALUES IN (1) PARTITION BY RANGE (at);
CREATE TABLE request_log_7d PARTITION OF request_log_entry FOR VALUES IN (7) PARTITION BY RANGE (at);
CREATE TABLE request_log_30d PARTITION OF request_log_entry FOR VALUES IN (30) PARTITION BY RANGE (at);
"""


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.CreateModel(
                    name="LogEntry",
                    fields=[
                        ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                        ("at", models.DateTimeField()),
                        ("keep_days", models.SmallIntegerField()),
                        ("environment_id", models.CharField(max_length=30, null=True)),
                        ("request_id", models.CharField(max_length=64)),
                        ("method", models.CharField(max_length=10)),
                        ("route", models.CharField(max_length=200)),
                        ("table_name", models.CharField(max_length=63, null=True)),
                        ("function_name", models.CharField(max_length=63, null=True)),
                        ("status", models.SmallIntegerField()),
                        ("code", models.CharField(max_length=60, null=True)),
                        (
                            "field_codes",
                            django.contrib.postgres.fields.ArrayField(
                                base_field=models.CharField(max_length=60), size=None
                            ),
                        ),
                        ("duration_ms", models.FloatField()),
                        ("caller_kind", models.CharField(max_length=10, null=True)),
                        ("caller_id", models.CharField(max_length=30, null=True)),
                    ],
                    options={"db_table": "request_log_entry"},
                )
            ],
            database_operations=[migrations.RunSQL(_TABLES, "DROP TABLE request_log_entry")],
        ),
        migrations.AddIndex(
            model_name="logentry",
            index=models.Index(fields=["environment_id", "-at", "-id"], name="log_of_environment"),
        ),
        migrations.AddIndex(
            model_name="logentry",
            index=models.Index(fields=["request_id", "-at", "-id"], name="log_of_request"),
        ),
        migrations.AddIndex(
            model_name="logentry",
            index=models.Index(
                condition=models.Q(("status__gte", 400)),
                fields=["environment_id", "-at", "-id"],
                name="log_of_errors",
            ),
        ),
        migrations.CreateModel(
            name="OmittedRequests",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("environment_id", models.CharField(max_length=30)),
                ("minute", models.DateTimeField()),
                ("requests", models.BigIntegerField()),
            ],
            options={
                "db_table": "request_log_omitted",
                "indexes": [models.Index(fields=["minute"], name="log_omitted_by_minute")],
                "constraints": [
                    models.UniqueConstraint(fields=("environment_id", "minute"), name="log_omitted_once")
                ],
            },
        ),
    ]
