from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models.fields.json import KeyTransform


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("accounts", "0009_pool_sizes"),
    ]

    operations = [
        # One that was broken off leaves an invalid index behind, and could not be run again.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS audit_of_address", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="auditentry",
            index=models.Index(
                KeyTransform("address", "detail"),
                condition=models.Q(("detail__has_key", "address")),
                name="audit_of_address",
            ),
        ),
    ]
