"""A crash empties the watched tables, so that no stream goes on behind a position of before."""

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
