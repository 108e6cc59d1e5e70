from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("functions", "0020_runs_of_users"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="address_id",
            field=models.CharField(max_length=30, null=True),
        ),
    ]
