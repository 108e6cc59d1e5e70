from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('functions', '0005_deleted_functions'),
    ]

    operations = [
        migrations.AddField(
            model_name='function',
            name='last_skipped_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='function',
            name='next_run_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='function',
            name='schedule',
            field=models.CharField(max_length=200, null=True),
        ),
        migrations.AddField(
            model_name='function',
            name='schedule_stopped',
            field=models.CharField(choices=[('caller_gone', 'Caller Gone'), ('copied', 'Copied'), ('operator', 'Operator'), ('unreadable', 'Unreadable')], max_length=20, null=True),
        ),
        migrations.AddField(
            model_name='function',
            name='scheduled_id',
            field=models.CharField(max_length=30, null=True),
        ),
        migrations.AddField(
            model_name='function',
            name='scheduled_kind',
            field=models.CharField(max_length=10, null=True),
        ),
        migrations.AddField(
            model_name='function',
            name='scheduled_run_id',
            field=models.CharField(max_length=30, null=True),
        ),
        migrations.AddField(
            model_name='run',
            name='trigger',
            field=models.CharField(choices=[('call', 'Call'), ('schedule', 'Schedule')], db_default='call', max_length=10),
        ),
        migrations.AddIndex(
            model_name='function',
            index=models.Index(condition=models.Q(('next_run_at__isnull', False)), fields=['next_run_at'], name='function_due'),
        ),
        migrations.AddConstraint(
            model_name='function',
            constraint=models.CheckConstraint(condition=models.Q(('next_run_at', None), models.Q(('schedule__isnull', False), ('scheduled_id__isnull', False), ('scheduled_kind__isnull', False)), _connector='OR'), name='function_due_as_somebody'),
        ),
    ]
