from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("projects", "0003_control_events"),
    ]

    operations = [
        migrations.AddField(
            model_name="project",
            name="suspended_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="project",
            name="suspension_reason",
            field=models.CharField(editable=False, max_length=500, null=True),
        ),
        migrations.AddField(
            model_name="project",
            name="resumed_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddConstraint(
            model_name="project",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("suspended_at__isnull", True), ("suspension_reason__isnull", True)),
                    models.Q(
                        ("suspended_at__isnull", False),
                        ("suspension_reason__isnull", False),
                        ("suspension_reason__regex", "\\S"),
                    ),
                    _connector="OR",
                ),
                name="project_suspension_has_reason",
            ),
        ),
    ]
