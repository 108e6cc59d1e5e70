from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ("projects", "0005_suspended_projects"),
    ]

    operations = [
        migrations.AddField(
            model_name="controlevent",
            name="depth",
            field=models.SmallIntegerField(db_default=0),
        ),
    ]
