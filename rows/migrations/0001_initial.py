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
            name='AuditOutboxEntry',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('aud',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('actor_kind', models.CharField(max_length=10)),
                ('actor_id', models.CharField(max_length=30, null=True)),
                ('action', models.CharField(max_length=60)),
                ('target_id', models.CharField(max_length=64)),
                ('project_id', models.CharField(max_length=30, null=True)),
                ('environment_id', models.CharField(max_length=30)),
                ('detail', models.JSONField(default=dict)),
                ('request_id', models.CharField(max_length=64, null=True)),
            ],
        ),
        migrations.CreateModel(
            name='PendingUserDeletion',
            fields=[
                ('user_id', models.CharField(max_length=30, primary_key=True, serialize=False)),
                ('environment_id', models.CharField(max_length=30)),
                ('actor_kind', models.CharField(max_length=10)),
                ('actor_id', models.CharField(max_length=30, null=True)),
                ('request_id', models.CharField(max_length=64, null=True)),
            ],
        ),
        migrations.CreateModel(
            name='PendingUserReferences',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('environment_id', models.CharField(max_length=30)),
                ('since', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='CurrentVersion',
            fields=[
                ('environment_id', models.CharField(max_length=30, primary_key=True, serialize=False)),
                ('version', models.PositiveIntegerField()),
                ('indexes_due', models.BooleanField(default=False)),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('indexes_due', True)), fields=['environment_id'], name='current_version_indexes_due')],
            },
        ),
        migrations.CreateModel(
            name='EventInterest',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('environment_id', models.CharField(max_length=30)),
                ('table_name', models.CharField(max_length=48)),
                ('action', models.CharField(max_length=10)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('environment_id', 'table_name', 'action'), name='event_interest_once'), models.CheckConstraint(condition=models.Q(('action__in', ['insert', 'update', 'delete', '*'])), name='event_interest_action')],
            },
        ),
        migrations.CreateModel(
            name='OutboxEvent',
            fields=[
                ('sequence', models.BigAutoField(primary_key=True, serialize=False)),
                ('event_id', models.CharField(max_length=30)),
                ('environment_id', models.CharField(max_length=30)),
                ('type', models.CharField(max_length=120)),
                ('subject', models.CharField(max_length=120, null=True)),
                ('data', models.TextField()),
                ('schema_version', models.PositiveIntegerField(null=True)),
                ('request_id', models.CharField(max_length=64, null=True)),
                ('depth', models.SmallIntegerField(default=0)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('relayed_at', models.DateTimeField(null=True)),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('relayed_at__isnull', True)), fields=['sequence'], name='outbox_due'), models.Index(condition=models.Q(('relayed_at__isnull', True)), fields=['environment_id', 'sequence'], name='outbox_due_by_environment'), models.Index(fields=['environment_id', '-sequence'], name='outbox_of_environment'), models.Index(condition=models.Q(('relayed_at__isnull', False)), fields=['relayed_at'], name='outbox_done'), models.Index(condition=models.Q(('request_id__isnull', False)), fields=['request_id'], name='outbox_of_request'), models.Index(condition=models.Q(('subject__isnull', False)), fields=['environment_id', 'subject'], name='outbox_of_row')],
                'constraints': [models.UniqueConstraint(fields=('event_id',), name='outbox_event_once')],
            },
        ),
        migrations.CreateModel(
            name='SchemaVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('environment_id', models.CharField(max_length=30)),
                ('version', models.PositiveIntegerField()),
                ('document_text', models.TextField()),
                ('source_digest', models.CharField(max_length=64)),
                ('renames', models.JSONField(default=dict)),
                ('operations', models.JSONField(default=list)),
                ('author_kind', models.CharField(max_length=10)),
                ('author_id', models.CharField(max_length=30, null=True)),
                ('reverts_to', models.PositiveIntegerField(null=True)),
                ('request_id', models.CharField(max_length=64, null=True)),
                ('applied_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('environment_id', 'version'), name='schema_version_once'), models.CheckConstraint(condition=models.Q(('version__gte', 1)), name='schema_version_counts_from_one')],
            },
        ),
        # An applied schema version is history and never changes.
        migrations.RunSQL(
            """
            CREATE FUNCTION platform.rows_refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                RAISE EXCEPTION 'a schema version is immutable' USING ERRCODE = 'restrict_violation';
            END $$;
            CREATE TRIGGER schema_version_immutable BEFORE UPDATE ON platform.rows_schemaversion
                FOR EACH ROW EXECUTE FUNCTION platform.rows_refuse_update();
            """,
            """
            DROP TRIGGER schema_version_immutable ON platform.rows_schemaversion;
            DROP FUNCTION platform.rows_refuse_update();
            """,
        ),
    ]
