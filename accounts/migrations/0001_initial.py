import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.fields.json
import django.db.models.functions.datetime
import django.db.models.functions.text
import functools
import platform_site.identity.ids
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
    ]

    operations = [
        migrations.CreateModel(
            name='PoolSize',
            fields=[
                ('environment_id', models.CharField(max_length=30, primary_key=True, serialize=False)),
                ('users', models.BigIntegerField(db_default=0)),
                ('is_counted', models.BooleanField(db_default=False)),
            ],
        ),
        migrations.CreateModel(
            name='SigningKey',
            fields=[
                ('kid', models.CharField(max_length=43, primary_key=True, serialize=False)),
                ('sealed_private', models.BinaryField()),
                ('public_jwk', models.JSONField()),
                ('signs_from', models.DateTimeField()),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('retires_at', models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name='User',
            fields=[
                ('password', models.CharField(max_length=128, verbose_name='password')),
                ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('usr',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('environment_id', models.CharField(blank=True, max_length=30, null=True)),
                ('email', models.CharField(max_length=254)),
                ('email_verified_at', models.DateTimeField(blank=True, null=True)),
                ('name', models.CharField(blank=True, default='', max_length=200)),
                ('role', models.CharField(blank=True, max_length=48, null=True)),
                ('claims', models.JSONField(blank=True, default=dict)),
                ('disabled_at', models.DateTimeField(blank=True, null=True)),
                ('is_staff', models.BooleanField(default=False)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
            ],
        ),
        migrations.CreateModel(
            name='AccountEmail',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('eml',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('environment_id', models.CharField(blank=True, max_length=30, null=True)),
                ('project_id', models.CharField(blank=True, max_length=30, null=True)),
                ('kind', models.CharField(choices=[('sign_up', 'Sign Up'), ('invitation', 'Invitation'), ('member_invitation', 'Member Invitation'), ('verify_email', 'Verify Email'), ('reset_password', 'Reset Password'), ('change_email', 'Change Email'), ('email_changed', 'Email Changed'), ('password_changed', 'Password Changed'), ('identity_linked', 'Identity Linked'), ('project_suspended', 'Project Suspended'), ('project_resumed', 'Project Resumed')], max_length=20)),
                ('subject', models.CharField(max_length=254)),
                ('recipient', models.CharField(max_length=254)),
                ('details', models.JSONField(blank=True, default=dict)),
                ('token_hash', models.BinaryField(max_length=32, null=True, unique=True)),
                ('bound_to', models.BinaryField(max_length=32, null=True)),
                ('expires_at', models.DateTimeField()),
                ('attempts', models.IntegerField(default=0)),
                ('next_attempt_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('sent_at', models.DateTimeField(null=True)),
                ('failed_at', models.DateTimeField(null=True)),
                ('last_error', models.CharField(blank=True, default='', max_length=300)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('user', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='emails', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('aud',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), db_index=True, editable=False)),
                ('actor_kind', models.CharField(max_length=10)),
                ('actor_id', models.CharField(db_index=True, max_length=30, null=True)),
                ('action', models.CharField(max_length=60)),
                ('target_id', models.CharField(db_index=True, max_length=64, null=True)),
                ('project_id', models.CharField(db_index=True, max_length=30, null=True)),
                ('environment_id', models.CharField(db_index=True, max_length=30, null=True)),
                ('detail', models.JSONField(default=dict)),
                ('request_id', models.CharField(db_index=True, max_length=64, null=True)),
            ],
            options={
                'verbose_name_plural': 'audit entries',
                'ordering': ['-at', '-id'],
                'indexes': [models.Index(django.db.models.fields.json.KeyTransform('address', 'detail'), condition=models.Q(('detail__has_key', 'address')), name='audit_of_address')],
            },
        ),
        migrations.CreateModel(
            name='IdentityProvider',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('idp',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('environment_id', models.CharField(blank=True, max_length=30, null=True)),
                ('name', models.CharField(max_length=48)),
                ('display_name', models.CharField(max_length=100)),
                ('kind', models.CharField(choices=[('oidc', 'Oidc'), ('oauth2', 'Oauth2')], max_length=8)),
                ('issuer', models.CharField(blank=True, max_length=500, null=True)),
                ('authorization_endpoint', models.CharField(blank=True, max_length=500, null=True)),
                ('token_endpoint', models.CharField(blank=True, max_length=500, null=True)),
                ('userinfo_endpoint', models.CharField(blank=True, max_length=500, null=True)),
                ('emails_endpoint', models.CharField(blank=True, max_length=500, null=True)),
                ('profile_fields', models.JSONField(blank=True, default=dict)),
                ('scopes', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), blank=True, default=list, size=None)),
                ('client_id', models.CharField(max_length=300)),
                ('sealed_client_secret', models.BinaryField(null=True)),
                ('client_auth', models.CharField(blank=True, choices=[('client_secret_basic', 'Basic'), ('client_secret_post', 'Post'), ('none', 'None')], max_length=20, null=True)),
                ('trusts_email', models.BooleanField(default=False)),
                ('sign_up', models.BooleanField(default=True)),
                ('enabled', models.BooleanField(default=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
            ],
            options={
                'constraints': [models.UniqueConstraint(models.F('environment_id'), models.F('name'), name='provider_name_unique_in_pool', nulls_distinct=False), models.CheckConstraint(condition=models.Q(models.Q(('issuer__isnull', False), ('kind', 'oidc')), models.Q(('authorization_endpoint__isnull', False), ('kind', 'oauth2'), ('token_endpoint__isnull', False), ('userinfo_endpoint__isnull', False)), _connector='OR'), name='provider_says_where_it_is')],
            },
        ),
        migrations.CreateModel(
            name='Identity',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('idn',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('subject', models.CharField(max_length=255)),
                ('email', models.CharField(max_length=254, null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('last_used_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='identities', to=settings.AUTH_USER_MODEL)),
                ('provider', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='identities', to='accounts.identityprovider')),
            ],
            options={
                'verbose_name_plural': 'identities',
            },
        ),
        migrations.CreateModel(
            name='PoolSettings',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('environment_id', models.CharField(blank=True, max_length=30, null=True)),
                ('sign_up', models.CharField(choices=[('off', 'Off'), ('open', 'Open'), ('invited', 'Invited')], default='off', max_length=8)),
                ('app_name', models.CharField(blank=True, default='', max_length=64)),
                ('app_url', models.CharField(blank=True, default='', max_length=500)),
                ('link_urls', models.JSONField(blank=True, default=dict)),
                ('changed_at', models.DateTimeField(auto_now=True)),
            ],
            options={
                'verbose_name_plural': 'pool settings',
                'constraints': [models.UniqueConstraint(fields=('environment_id',), name='settings_once_per_pool', nulls_distinct=False), models.CheckConstraint(condition=models.Q(('sign_up__in', ['off', 'open', 'invited'])), name='settings_sign_up_is_known')],
            },
        ),
        migrations.CreateModel(
            name='RedirectUri',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('rdu',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('environment_id', models.CharField(blank=True, max_length=30, null=True)),
                ('uri', models.CharField(max_length=500)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
            ],
            options={
                'verbose_name': 'redirect URI',
                'constraints': [models.UniqueConstraint(models.F('environment_id'), models.F('uri'), name='redirect_uri_once', nulls_distinct=False)],
            },
        ),
        migrations.CreateModel(
            name='ServerKey',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('key',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=100)),
                ('environment_id', models.CharField(db_index=True, max_length=30, null=True)),
                ('prefix', models.CharField(max_length=12)),
                ('secret_hash', models.BinaryField(max_length=32, unique=True)),
                ('scopes', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=40), size=None)),
                ('expires_at', models.DateTimeField(null=True)),
                ('last_used_at', models.DateTimeField(null=True)),
                ('revoked_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('account', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='account_keys', to=settings.AUTH_USER_MODEL)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='Session',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('ses',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('environment_id', models.CharField(db_index=True, max_length=30, null=True)),
                ('family_hash', models.BinaryField(max_length=32, unique=True)),
                ('refresh_hash', models.BinaryField(max_length=32)),
                ('previous_hash', models.BinaryField(max_length=32, null=True)),
                ('rotated_at', models.DateTimeField(null=True)),
                ('sealed_successor', models.BinaryField(null=True)),
                ('expires_at', models.DateTimeField()),
                ('revoked_at', models.DateTimeField(null=True)),
                ('revoked_reason', models.CharField(max_length=40, null=True)),
                ('user_agent', models.CharField(blank=True, default='', max_length=300)),
                ('ip_address', models.GenericIPAddressField(null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='sessions', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='AuthorizationCode',
            fields=[
                ('code_hash', models.BinaryField(max_length=32, primary_key=True, serialize=False)),
                ('environment_id', models.CharField(max_length=30, null=True)),
                ('method', models.CharField(max_length=60)),
                ('redirect_uri', models.CharField(max_length=500)),
                ('code_challenge', models.CharField(max_length=43, null=True)),
                ('expires_at', models.DateTimeField()),
                ('used_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('session', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='accounts.session')),
            ],
        ),
        migrations.AddIndex(
            model_name='user',
            index=models.Index(fields=['environment_id', '-id'], name='user_of_pool_newest_first'),
        ),
        migrations.AddConstraint(
            model_name='user',
            constraint=models.UniqueConstraint(models.F('environment_id'), django.db.models.functions.text.Lower('email'), name='user_email_unique_in_pool', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='user',
            constraint=models.CheckConstraint(condition=models.Q(('environment_id__isnull', True), models.Q(('is_staff', False), ('is_superuser', False)), _connector='OR'), name='user_staff_is_platform_account'),
        ),
        migrations.AddIndex(
            model_name='accountemail',
            index=models.Index(condition=models.Q(('failed_at__isnull', True), ('sent_at__isnull', True)), fields=['next_attempt_at'], name='email_due'),
        ),
        migrations.AddIndex(
            model_name='accountemail',
            index=models.Index(fields=['environment_id', 'kind', 'subject'], name='email_by_subject'),
        ),
        migrations.AddIndex(
            model_name='accountemail',
            index=models.Index(fields=['expires_at'], name='email_expiry'),
        ),
        migrations.AddIndex(
            model_name='accountemail',
            index=models.Index(condition=models.Q(('project_id__isnull', False)), fields=['project_id'], name='email_by_project'),
        ),
        migrations.AddConstraint(
            model_name='accountemail',
            constraint=models.UniqueConstraint(condition=models.Q(('kind__in', ['sign_up', 'reset_password']), _negated=True), fields=('environment_id', 'kind', 'subject'), name='email_newest_of_kind', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='identity',
            constraint=models.UniqueConstraint(fields=('provider', 'subject'), name='identity_unique_at_provider'),
        ),
        migrations.AddConstraint(
            model_name='serverkey',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('account__isnull', False), ('environment_id__isnull', True)), models.Q(('account__isnull', True), ('environment_id__isnull', False)), _connector='OR'), name='key_bound_to_environment_or_account'),
        ),
        migrations.AddIndex(
            model_name='session',
            index=models.Index(fields=['user', '-id'], name='session_of_user_newest_first'),
        ),
        migrations.AddIndex(
            model_name='session',
            index=models.Index(fields=['expires_at'], name='session_expiry'),
        ),
        migrations.AddIndex(
            model_name='authorizationcode',
            index=models.Index(fields=['expires_at'], name='code_expiry'),
        ),
        # By triggers, so that statements outside the ORM count as well.
        migrations.RunSQL(
            """
            CREATE FUNCTION accounts_count_users() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                INSERT INTO accounts_poolsize AS size (environment_id, users)
                SELECT environment_id, count(*) * TG_ARGV[0]::int FROM changed
                WHERE environment_id IS NOT NULL GROUP BY environment_id ORDER BY environment_id
                ON CONFLICT (environment_id) DO UPDATE SET users = size.users + EXCLUDED.users;
                RETURN NULL;
            END $$;
            CREATE TRIGGER users_created AFTER INSERT ON accounts_user REFERENCING NEW TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION accounts_count_users('1');
            CREATE TRIGGER users_deleted AFTER DELETE ON accounts_user REFERENCING OLD TABLE AS changed
            FOR EACH STATEMENT EXECUTE FUNCTION accounts_count_users('-1');
            """,
            """
            DROP TRIGGER users_deleted ON accounts_user;
            DROP TRIGGER users_created ON accounts_user;
            DROP FUNCTION accounts_count_users();
            """,
        ),
    ]
