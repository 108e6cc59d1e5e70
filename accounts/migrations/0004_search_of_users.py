"""Users by the beginning of their email or name."""

from django.contrib.postgres.indexes import OpClass
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models
from django.db.models.functions import Lower


class Migration(migrations.Migration):
    atomic = False  # for the indexes

    dependencies = [("accounts", "0003_signed_client_secrets")]

    operations = [
        AddIndexConcurrently(
            model_name="user",
            index=models.Index(
                "environment_id", OpClass(Lower("email"), "text_pattern_ops"), name="user_of_pool_by_email"
            ),
        ),
        AddIndexConcurrently(
            model_name="user",
            index=models.Index(
                "environment_id", OpClass(Lower("name"), "text_pattern_ops"), name="user_of_pool_by_name"
            ),
        ),
    ]
