import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='Sample',
            fields=[
                ('name', models.CharField(max_length=40, primary_key=True, serialize=False)),
                ('at', models.DateTimeField()),
                ('values', models.JSONField(default=dict)),
                ('measured_at', models.DateTimeField(null=True)),
                ('is_away', models.BooleanField(default=False)),
            ],
        ),
        migrations.CreateModel(
            name='EndpointMetric',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField()),
                ('method', models.CharField(max_length=10)),
                ('route', models.CharField(max_length=200)),
                ('requests', models.BigIntegerField()),
                ('client_errors', models.BigIntegerField()),
                ('server_errors', models.BigIntegerField()),
                ('rate_limited', models.BigIntegerField()),
                ('buckets', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), size=None)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('at', 'method', 'route'), name='endpoint_figure_once')],
            },
        ),
        migrations.CreateModel(
            name='FunctionMetric',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField()),
                ('region', models.CharField(max_length=40)),
                ('environment_id', models.CharField(max_length=30)),
                ('function_id', models.CharField(max_length=30)),
                ('name', models.CharField(max_length=63)),
                ('runs', models.BigIntegerField()),
                ('failed', models.BigIntegerField()),
                ('total_ms', models.BigIntegerField()),
                ('longest_ms', models.BigIntegerField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('at', 'function_id'), name='function_figure_once')],
            },
        ),
        migrations.CreateModel(
            name='RateLimitedCaller',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField()),
                ('caller_id', models.CharField(max_length=64)),
                ('requests', models.BigIntegerField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('at', 'caller_id'), name='caller_refusal_once')],
            },
        ),
        migrations.CreateModel(
            name='RegionMetric',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField()),
                ('region', models.CharField(max_length=40)),
                ('attempts', models.BigIntegerField()),
                ('attempts_succeeded', models.BigIntegerField()),
                ('runs_succeeded', models.BigIntegerField()),
                ('runs_failed', models.BigIntegerField()),
                ('runs_timed_out', models.BigIntegerField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('at', 'region'), name='region_figure_once')],
            },
        ),
    ]
