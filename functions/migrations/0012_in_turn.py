from django.contrib.postgres.operations import AddIndexConcurrently, RemoveIndexConcurrently
from django.db import migrations, models
from django.db.models.functions import Coalesce
from django.db.models.lookups import Exact


class Migration(migrations.Migration):
    """The release before claims in the order of `created_at`: right as ever, but it walks over a backlog of visitors'
    while it still runs."""

    atomic = False

    dependencies = [
        ("functions", "0011_networks"),
    ]

    operations = [
        # One that was broken off leaves an invalid index behind, and could not be run again.
        migrations.RunSQL("DROP INDEX CONCURRENTLY IF EXISTS run_in_turn", migrations.RunSQL.noop),
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(
                models.F("environment_id"),
                Exact(models.F("caller_kind"), models.Value("anonymous")),
                Coalesce("turn_at", "created_at"),
                condition=models.Q(("phase", "queued")),
                name="run_in_turn",
            ),
        ),
        RemoveIndexConcurrently(model_name="run", name="run_turn"),
    ]
