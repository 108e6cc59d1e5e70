from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0008_emails_by_project"),
    ]

    operations = [
        migrations.CreateModel(
            name="PoolSize",
            fields=[
                ("environment_id", models.CharField(max_length=30, primary_key=True, serialize=False)),
                ("users", models.BigIntegerField(db_default=0)),
                ("is_counted", models.BooleanField(db_default=False)),
            ],
        ),
        # By triggers and not by our code: processes of the release before go on making and deleting users.
        migrations.RunSQL(
            """
            CREATE FUNCTION accounts_note_pool_sizes() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                INSERT INTO accounts_poolsize AS kept (environment_id, users)
                SELECT environment_id, count(*) * TG_ARGV[0]::int FROM changed
                WHERE environment_id IS NOT NULL GROUP BY environment_id ORDER BY environment_id
                ON CONFLICT (environment_id) DO UPDATE SET users = kept.users + EXCLUDED.users;
                RETURN NULL;
            END $$;
            CREATE TRIGGER users_made AFTER INSERT ON accounts_user REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION accounts_note_pool_sizes('1');
            CREATE TRIGGER users_gone AFTER DELETE ON accounts_user REFERENCING OLD TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION accounts_note_pool_sizes('-1');
            """,
            """
            DROP TRIGGER users_gone ON accounts_user;
            DROP TRIGGER users_made ON accounts_user;
            DROP FUNCTION accounts_note_pool_sizes();
            """,
        ),
    ]
