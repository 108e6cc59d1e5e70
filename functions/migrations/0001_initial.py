import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.comparison
import django.db.models.functions.datetime
import functools
import platform_site.identity.ids
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='Function',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('fn',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('environment_id', models.CharField(max_length=30, null=True)),
                ('name', models.CharField(max_length=63)),
                ('active_version', models.PositiveIntegerField()),
                ('last_version', models.PositiveIntegerField()),
                ('timeout_ms', models.PositiveIntegerField()),
                ('memory_mb', models.PositiveIntegerField()),
                ('allowed_hosts', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=260), default=list, size=None)),
                ('invoke', models.CharField(max_length=10, null=True)),
                ('attempts', models.PositiveSmallIntegerField(default=1)),
                ('schedule', models.CharField(max_length=200, null=True)),
                ('next_run_at', models.DateTimeField(null=True)),
                ('schedule_stopped', models.CharField(choices=[('caller_gone', 'Caller Gone'), ('copied', 'Copied'), ('operator', 'Operator'), ('unreadable', 'Unreadable')], max_length=20, null=True)),
                ('scheduled_kind', models.CharField(max_length=10, null=True)),
                ('scheduled_id', models.CharField(max_length=30, null=True)),
                ('scheduled_run_id', models.CharField(max_length=30, null=True)),
                ('last_skipped_at', models.DateTimeField(null=True)),
                ('events', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=120), null=True, size=None)),
                ('events_stopped', models.CharField(choices=[('caller_gone', 'Caller Gone'), ('copied', 'Copied'), ('operator', 'Operator'), ('unreadable', 'Unreadable')], max_length=20, null=True)),
                ('events_kind', models.CharField(max_length=10, null=True)),
                ('events_id', models.CharField(max_length=30, null=True)),
                ('runs_since', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('next_run_at__isnull', False)), fields=['next_run_at'], name='function_due'), models.Index(condition=models.Q(('events__isnull', False), ('events_stopped', None)), fields=['environment_id'], name='function_hears')],
                'constraints': [models.UniqueConstraint(fields=('environment_id', 'name'), name='function_name_unique_in_environment'), models.CheckConstraint(condition=models.Q(('next_run_at', None), models.Q(('schedule__isnull', False), ('scheduled_id__isnull', False), ('scheduled_kind__isnull', False)), _connector='OR'), name='function_due_as_somebody'), models.CheckConstraint(condition=models.Q(('events', None), ('events_stopped__isnull', False), models.Q(('events_id__isnull', False), ('events_kind__isnull', False)), _connector='OR'), name='function_hears_as_somebody')],
            },
        ),
        migrations.CreateModel(
            name='InboundEndpoint',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('inb',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('token_hash', models.BinaryField(unique=True)),
                ('label', models.CharField(blank=True, max_length=100)),
                ('is_async', models.BooleanField()),
                ('runs_as_kind', models.CharField(max_length=10)),
                ('runs_as_id', models.CharField(max_length=30)),
                ('uses', models.BigIntegerField(db_default=0)),
                ('last_used_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('function', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, related_name='inbound_addresses', to='functions.function')),
            ],
        ),
        migrations.CreateModel(
            name='PendingEvent',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('environment_id', models.CharField(max_length=30)),
                ('function_id', models.CharField(max_length=30)),
                ('event_id', models.CharField(max_length=30)),
                ('sequence', models.BigIntegerField()),
            ],
            options={
                'indexes': [models.Index(fields=['environment_id', 'sequence'], name='heard_in_order')],
                'constraints': [models.UniqueConstraint(fields=('event_id', 'function_id'), name='heard_once')],
            },
        ),
        migrations.CreateModel(
            name='Run',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('run',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('environment_id', models.CharField(max_length=30)),
                ('version', models.PositiveIntegerField()),
                ('status', models.CharField(choices=[('running', 'Running'), ('succeeded', 'Succeeded'), ('failed', 'Failed')], default='running', max_length=10)),
                ('phase', models.CharField(choices=[('queued', 'Queued'), ('executing', 'Executing'), ('ended', 'Ended')], max_length=10)),
                ('is_async', models.BooleanField()),
                ('trigger', models.CharField(choices=[('call', 'Call'), ('schedule', 'Schedule'), ('inbound', 'Inbound'), ('event', 'Event')], db_default='call', max_length=10)),
                ('event_id', models.CharField(max_length=30, null=True)),
                ('address_id', models.CharField(max_length=30, null=True)),
                ('input', models.TextField()),
                ('output', models.TextField(null=True)),
                ('error', models.JSONField(null=True)),
                ('logs', models.JSONField(default=list)),
                ('sandbox_layers', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=20), default=list, size=None)),
                ('not_stored', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=10), null=True, size=None)),
                ('caller_kind', models.CharField(max_length=10)),
                ('caller_id', models.CharField(max_length=30)),
                ('weight', models.IntegerField(null=True)),
                ('network', models.BigIntegerField(null=True)),
                ('turn_at', models.DateTimeField(null=True)),
                ('request_id', models.CharField(max_length=64, null=True)),
                ('depth', models.SmallIntegerField(default=0)),
                ('attempts', models.PositiveSmallIntegerField(default=0)),
                ('concurrency', models.PositiveSmallIntegerField(db_default=1)),
                ('slot', models.SmallIntegerField(null=True)),
                ('claimed_until', models.DateTimeField(null=True)),
                ('cancel_requested_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('started_at', models.DateTimeField(null=True)),
                ('ended_at', models.DateTimeField(null=True)),
                ('duration_ms', models.IntegerField(null=True)),
                ('function', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='runs', to='functions.function')),
            ],
            options={
                'indexes': [models.Index(fields=['function', '-created_at', '-id'], name='run_of_function'), models.Index(fields=['function', 'trigger', 'status', '-created_at', '-id'], name='run_by_how'), models.Index(condition=models.Q(('caller_kind', 'user')), fields=['function', 'caller_id', '-created_at', '-id'], name='run_of_user'), models.Index(models.F('environment_id'), models.ExpressionWrapper(models.Q(('caller_kind', 'anonymous'), ('trigger', 'event'), _connector='OR'), output_field=models.BooleanField()), django.db.models.functions.comparison.Coalesce('turn_at', 'created_at'), condition=models.Q(('phase', 'queued')), name='run_turn_of_crowd'), models.Index(condition=models.Q(('phase', 'executing')), fields=['claimed_until'], name='run_lease'), models.Index(condition=models.Q(('caller_kind', 'anonymous')), fields=['environment_id', 'id'], name='run_visit'), models.Index(condition=models.Q(('weight__isnull', False)), fields=['environment_id', 'function', 'id'], include=('weight',), name='run_weighed'), models.Index(condition=models.Q(('ended_at__isnull', False)), fields=['ended_at'], name='run_ended'), models.Index(condition=models.Q(('request_id__isnull', False)), fields=['request_id'], name='run_of_request')],
                'constraints': [models.UniqueConstraint(condition=models.Q(('slot__isnull', False)), fields=('environment_id', 'slot'), name='run_slot_once'), models.UniqueConstraint(condition=models.Q(('event_id__isnull', False)), fields=('event_id', 'function'), name='run_once_per_event')],
            },
        ),
        migrations.CreateModel(
            name='Secret',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=64)),
                ('sealed_value', models.BinaryField(null=True)),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('function', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='secrets', to='functions.function')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('function', 'name'), name='secret_once_per_function')],
            },
        ),
        migrations.CreateModel(
            name='Version',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField()),
                ('source', models.TextField()),
                ('source_hash', models.CharField(max_length=64)),
                ('author_kind', models.CharField(max_length=10)),
                ('author_id', models.CharField(max_length=30, null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('function', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='versions', to='functions.function')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('function', 'number'), name='version_once')],
            },
        ),
        # Django's own constraint would not cascade, and raw SQL deletes functions.
        migrations.RunSQL(
            "ALTER TABLE functions_inboundendpoint ADD CONSTRAINT inbound_endpoint_function"
            " FOREIGN KEY (function_id) REFERENCES functions_function (id)"
            " ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED",
            "ALTER TABLE functions_inboundendpoint DROP CONSTRAINT inbound_endpoint_function",
        ),
    ]
