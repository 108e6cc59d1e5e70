from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("projects", "0006_chains"),
    ]

    operations = [
        migrations.AddField(
            model_name="controlevent",
            name="cluster",
            field=models.CharField(editable=False, max_length=40, null=True),
        ),
        # By a trigger and not by our code: processes of the release before go on writing events.
        migrations.RunSQL(
            """
            CREATE FUNCTION projects_name_cluster_of_event() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                NEW.cluster := (SELECT p.cluster FROM projects_environment e
                                  JOIN projects_project p ON p.id = e.project_id WHERE e.id = NEW.environment_id);
                RETURN NEW;
            END $$;
            CREATE TRIGGER control_event_cluster BEFORE INSERT ON projects_controlevent
            FOR EACH ROW EXECUTE FUNCTION projects_name_cluster_of_event();
            """,
            """
            DROP TRIGGER control_event_cluster ON projects_controlevent;
            DROP FUNCTION projects_name_cluster_of_event();
            """,
        ),
        migrations.RunSQL(
            """
            UPDATE projects_controlevent w SET cluster = p.cluster
              FROM projects_environment e JOIN projects_project p ON p.id = e.project_id
             WHERE w.relayed_at IS NULL AND e.id = w.environment_id
            """,
            migrations.RunSQL.noop,
        ),
    ]
