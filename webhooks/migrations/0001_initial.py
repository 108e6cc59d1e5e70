import django.contrib.postgres.fields
import django.contrib.postgres.indexes
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
            name='Webhook',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('wh',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('environment_id', models.CharField(max_length=30)),
                ('url', models.CharField(max_length=2000)),
                ('host', models.CharField(max_length=260)),
                ('events', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=120), size=None)),
                ('filter', models.JSONField(null=True)),
                ('columns', models.JSONField(null=True)),
                ('ordering', models.CharField(choices=[('none', 'None'), ('row', 'Row')], default='none', max_length=10)),
                ('description', models.CharField(blank=True, default='', max_length=500)),
                ('enabled', models.BooleanField(default=True)),
                ('disabled_reason', models.CharField(max_length=60, null=True)),
                ('failing_since', models.DateTimeField(null=True)),
                ('sealed_secret', models.BinaryField()),
                ('sealed_previous_secret', models.BinaryField(null=True)),
                ('previous_secret_until', models.DateTimeField(null=True)),
                ('listens_until', models.DateTimeField(null=True)),
                ('drop_before', models.DateTimeField(null=True)),
                ('recover_from', models.DateTimeField(null=True)),
                ('recover_until', models.DateTimeField(null=True)),
                ('deleted_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('updated_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('deleted_at__isnull', True)), fields=['environment_id', '-created_at', '-id'], name='webhook_of_environment'), models.Index(condition=models.Q(('drop_before__isnull', False), ('recover_from__isnull', False), _connector='OR'), fields=['id'], name='webhook_with_an_order')],
            },
        ),
        migrations.CreateModel(
            name='Delivery',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('dlv',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('environment_id', models.CharField(max_length=30)),
                ('event_id', models.CharField(max_length=30)),
                ('event_type', models.CharField(max_length=120)),
                ('subject', models.CharField(max_length=120, null=True)),
                ('sequence', models.BigIntegerField()),
                ('depth', models.SmallIntegerField(default=0)),
                ('body', models.TextField()),
                ('status', models.CharField(choices=[('pending', 'Pending'), ('delivered', 'Delivered'), ('exhausted', 'Exhausted'), ('held', 'Held'), ('filtered', 'Filtered'), ('dropped', 'Dropped')], default='pending', max_length=10)),
                ('outcome', models.CharField(max_length=200, null=True)),
                ('attempts', models.SmallIntegerField(default=0)),
                ('schedule_from', models.SmallIntegerField(default=0)),
                ('next_attempt_at', models.DateTimeField(null=True)),
                ('last_attempt_at', models.DateTimeField(null=True)),
                ('has_succeeded', models.BooleanField(null=True)),
                ('claimed_until', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('webhook', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='webhooks.webhook')),
            ],
            options={
                'verbose_name_plural': 'deliveries',
            },
        ),
        migrations.CreateModel(
            name='Attempt',
            fields=[
                ('id', models.BigAutoField(primary_key=True, serialize=False)),
                ('number', models.SmallIntegerField()),
                ('at', models.DateTimeField()),
                ('duration_ms', models.IntegerField()),
                ('response_status', models.SmallIntegerField(null=True)),
                ('response_headers', models.JSONField(default=dict)),
                ('response_body', models.TextField(blank=True, default='')),
                ('error', models.CharField(max_length=200, null=True)),
                ('delivery', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='tries', to='webhooks.delivery')),
            ],
            options={
                'ordering': ['number'],
                'indexes': [django.contrib.postgres.indexes.BrinIndex(autosummarize=True, fields=['at'], name='attempt_by_time', pages_per_range=16)],
                'constraints': [models.UniqueConstraint(fields=('delivery', 'number'), name='attempt_once')],
            },
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(condition=models.Q(('status', 'pending')), fields=['webhook', 'next_attempt_at'], name='delivery_waiting'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(fields=['webhook', '-created_at', '-id'], name='delivery_of_webhook'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(fields=['webhook', 'status', '-created_at', '-id'], name='delivery_by_status'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(condition=models.Q(('status__in', ['exhausted', 'dropped'])), fields=['webhook', '-created_at', '-id'], name='delivery_lost'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(condition=models.Q(('last_attempt_at__isnull', False)), fields=['webhook', '-last_attempt_at'], include=('has_succeeded',), name='delivery_health'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(condition=models.Q(('status__in', ['pending', 'held']), ('subject__isnull', False)), fields=['webhook', 'subject', 'sequence'], name='delivery_turn'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(fields=['environment_id', 'event_id'], name='delivery_of_event'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(condition=models.Q(('status', 'held')), fields=['webhook', 'sequence'], name='delivery_held_order'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(models.F('webhook'), django.db.models.functions.comparison.Greatest('created_at', 'next_attempt_at'), condition=models.Q(('status', 'held')), name='delivery_held_since'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.UniqueConstraint(fields=('webhook', 'event_id'), name='delivery_once_per_event'),
        ),
        # A claim changes no indexed column: with free space on its page it updates no index (a HOT update). The queue
        # changes quickly, so vacuum and analyze run more often than by default.
        migrations.RunSQL(
            """
            ALTER TABLE platform.webhooks_delivery SET (
                fillfactor = 75, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02)
            """,
            "ALTER TABLE platform.webhooks_delivery RESET"
            " (fillfactor, autovacuum_vacuum_scale_factor, autovacuum_analyze_scale_factor)",
        ),
    ]
