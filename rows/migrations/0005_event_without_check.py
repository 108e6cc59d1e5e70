"""Events have no check of their version, which PostgreSQL parses at each insert."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('rows', '0004_watched_tables_end_with_a_crash'),
    ]

    operations = [
        migrations.AlterField(
            model_name='outboxevent',
            name='schema_version',
            field=models.IntegerField(null=True),
        ),
    ]
