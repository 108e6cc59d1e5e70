from django.contrib.postgres.operations import RemoveIndexConcurrently
from django.db import migrations


class Migration(migrations.Migration):
    """Nothing is looked for by it any more but the oldest queued run, for the figures: a worker of the release before
    finds that one by the other index of what is queued, of which it reads all that waits."""

    atomic = False

    dependencies = [
        ("functions", "0021_runs_by_address"),
    ]

    operations = [
        RemoveIndexConcurrently(model_name="run", name="run_queue"),
    ]
