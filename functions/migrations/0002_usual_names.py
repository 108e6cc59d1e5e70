"""Indexes and constraints have usual names. The table of runs has no checks of its numbers, which PostgreSQL parses at
each insert and update, and no second index of ids, for searches by a prefix, which nothing makes."""

import django.db.models.deletion
from django.db import migrations, models


def rename_constraint(model, old, constraint):
    table, new = f"platform.functions_{model}", constraint.name
    return migrations.SeparateDatabaseAndState(
        database_operations=[
            migrations.RunSQL(
                f"ALTER TABLE {table} RENAME CONSTRAINT {old} TO {new}",
                f"ALTER TABLE {table} RENAME CONSTRAINT {new} TO {old}",
            )
        ],
        state_operations=[
            migrations.RemoveConstraint(model_name=model, name=old),
            migrations.AddConstraint(model_name=model, constraint=constraint),
        ],
    )


class Migration(migrations.Migration):

    dependencies = [
        ('functions', '0001_initial'),
    ]

    operations = [
        migrations.RenameIndex(
            model_name='function',
            new_name='function_with_events',
            old_name='function_hears',
        ),
        migrations.RenameIndex(
            model_name='pendingevent',
            new_name='pending_event_order',
            old_name='heard_in_order',
        ),
        migrations.RenameIndex(
            model_name='run',
            new_name='run_by_trigger',
            old_name='run_by_how',
        ),
        migrations.RenameIndex(
            model_name='run',
            new_name='run_queue_order',
            old_name='run_turn_of_crowd',
        ),
        migrations.RenameIndex(
            model_name='run',
            new_name='run_of_anonymous',
            old_name='run_visit',
        ),
        migrations.RenameIndex(
            model_name='run',
            new_name='run_size_sample',
            old_name='run_weighed',
        ),
        migrations.AlterField(
            model_name='inboundendpoint',
            name='function',
            field=models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, related_name='inbound_endpoints', to='functions.function'),
        ),
        migrations.AlterField(
            model_name='run',
            name='attempts',
            field=models.SmallIntegerField(default=0),
        ),
        migrations.AlterField(
            model_name='run',
            name='concurrency',
            field=models.SmallIntegerField(db_default=1),
        ),
        migrations.AlterField(
            model_name='run',
            name='version',
            field=models.IntegerField(),
        ),
        rename_constraint('function', 'function_due_as_somebody', models.CheckConstraint(condition=models.Q(('next_run_at', None), models.Q(('schedule__isnull', False), ('scheduled_id__isnull', False), ('scheduled_kind__isnull', False)), _connector='OR'), name='function_schedule_has_run_as')),
        rename_constraint('function', 'function_hears_as_somebody', models.CheckConstraint(condition=models.Q(('events', None), ('events_stopped__isnull', False), models.Q(('events_id__isnull', False), ('events_kind__isnull', False)), _connector='OR'), name='function_events_have_run_as')),
        rename_constraint('pendingevent', 'heard_once', models.UniqueConstraint(fields=('event_id', 'function_id'), name='pending_event_once')),
        migrations.RunSQL("DROP INDEX IF EXISTS platform.functions_run_id_db69bff2_like", migrations.RunSQL.noop),
    ]
