from django.db import migrations


class Migration(migrations.Migration):
    """An applied version is history: PostgreSQL refuses to change it, whoever asks."""

    dependencies = [("rows", "0001_initial")]

    operations = [
        migrations.RunSQL(
            """
            CREATE FUNCTION platform.rows_refuse_update() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                RAISE EXCEPTION 'a schema version is immutable' USING ERRCODE = 'restrict_violation';
            END $$;
            CREATE TRIGGER schema_version_immutable BEFORE UPDATE ON platform.rows_schemaversion
                FOR EACH ROW EXECUTE FUNCTION platform.rows_refuse_update();
            """,
            """
            DROP TRIGGER schema_version_immutable ON platform.rows_schemaversion;
            DROP FUNCTION platform.rows_refuse_update();
            """,
        )
    ]
