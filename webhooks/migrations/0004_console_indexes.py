from django.contrib.postgres.indexes import BrinIndex
from django.db import migrations


class Migration(migrations.Migration):
    """For the console's figures and timeline."""

    dependencies = [('webhooks', '0003_room_for_claims')]

    operations = [
        migrations.AddIndex(
            model_name='attempt',
            index=BrinIndex(autosummarize=True, fields=['at'], name='attempt_by_time', pages_per_range=16),
        ),
    ]
