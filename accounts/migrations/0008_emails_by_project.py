from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("accounts", "0007_member_invitations"),
    ]

    operations = [
        # One that was broken off leaves an invalid index behind, and could not be run again.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS email_by_project", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="accountemail",
            index=models.Index(
                condition=models.Q(("project_id__isnull", False)), fields=["project_id"], name="email_by_project"
            ),
        ),
    ]
