"""A crash of PostgreSQL empties the watched tables, so that streams send a reset and do not resume."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("rows", "0003_interest_of_the_relay"),
    ]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE platform.rows_watchedtable SET UNLOGGED",
            "ALTER TABLE platform.rows_watchedtable SET LOGGED",
        ),
    ]
