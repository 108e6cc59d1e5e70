"""The audit log of a project: indexes in the order of its pages."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False  # for the indexes

    dependencies = [("accounts", "0001_initial")]

    operations = [
        AddIndexConcurrently(
            model_name="auditentry", index=models.Index(fields=["project_id", "-at", "-id"], name="audit_of_project")
        ),
        AddIndexConcurrently(
            model_name="auditentry",
            index=models.Index(fields=["environment_id", "-at", "-id"], name="audit_of_environment"),
        ),
        migrations.AlterField(
            model_name="auditentry", name="project_id", field=models.CharField(max_length=30, null=True)
        ),
        migrations.AlterField(
            model_name="auditentry", name="environment_id", field=models.CharField(max_length=30, null=True)
        ),
    ]
