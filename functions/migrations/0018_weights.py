from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("functions", "0017_runs_by_how"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="weight",
            field=models.IntegerField(null=True),
        ),
        migrations.AddField(
            model_name="function",
            name="runs_since",
            field=models.DateTimeField(null=True),
        ),
    ]
