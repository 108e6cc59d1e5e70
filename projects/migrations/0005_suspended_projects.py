from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("projects", "0004_suspension"),
    ]

    operations = [
        # One that was broken off leaves an invalid index behind, and could not be run again.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS project_by_suspension", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="project",
            index=models.Index(
                condition=models.Q(("suspended_at__isnull", False)), fields=["suspended_at"], name="project_by_suspension"
            ),
        ),
    ]
