from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("functions", "0010_visits"),
    ]

    operations = [
        migrations.AddField(model_name="run", name="network", field=models.BigIntegerField(null=True)),
        migrations.AddField(model_name="run", name="turn_at", field=models.DateTimeField(null=True)),
    ]
