from django.db import migrations, models


class Migration(migrations.Migration):
    """What an import or a restore has still to do when it is cut off."""

    dependencies = [('rows', '0004_console_indexes')]

    operations = [
        migrations.CreateModel(
            name='DepartureDue',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('environment_id', models.CharField(max_length=30)),
                ('since', models.DateTimeField()),
            ],
        ),
    ]
