from django.db import migrations, models


class Migration(migrations.Migration):
    """For the console's figures and timeline."""

    dependencies = [('functions', '0002_seats')]

    operations = [
        migrations.AddIndex(
            model_name='run',
            index=models.Index(condition=models.Q(('ended_at__isnull', False)), fields=['ended_at'], name='run_ended'),
        ),
        migrations.AddIndex(
            model_name='run',
            index=models.Index(condition=models.Q(('request_id__isnull', False)), fields=['request_id'], name='run_of_request'),
        ),
    ]
