from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0003_lifecycle'),
    ]

    operations = [
        migrations.RenameField(
            model_name='identityprovider',
            old_name='fields',
            new_name='profile_fields',
        ),
    ]
