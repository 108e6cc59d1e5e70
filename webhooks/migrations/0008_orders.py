from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("webhooks", "0007_held_in_order")]

    operations = [
        migrations.AddField(
            model_name="webhook",
            name="drop_before",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="webhook",
            name="recover_from",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="webhook",
            name="recover_until",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddIndex(
            model_name="webhook",
            index=models.Index(
                condition=models.Q(("drop_before__isnull", False), ("recover_from__isnull", False), _connector="OR"),
                fields=["id"],
                name="webhook_with_an_order",
            ),
        ),
    ]
