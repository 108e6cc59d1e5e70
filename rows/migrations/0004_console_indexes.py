from django.db import migrations, models


class Migration(migrations.Migration):
    """For the console's figures and timeline."""

    dependencies = [('rows', '0003_outbox')]

    operations = [
        migrations.AddIndex(
            model_name='outboxevent',
            index=models.Index(condition=models.Q(('request_id__isnull', False)), fields=['request_id'], name='outbox_of_request'),
        ),
        migrations.AddIndex(
            model_name='outboxevent',
            index=models.Index(condition=models.Q(('subject__isnull', False)), fields=['environment_id', 'subject'], name='outbox_of_row'),
        ),
    ]
