import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("functions", "0008_turns"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="not_kept",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=10), null=True, size=None
            ),
        ),
    ]
