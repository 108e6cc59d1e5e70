import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.datetime
import functools
import platform_site.identity.ids
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='ControlEvent',
            fields=[
                ('sequence', models.BigAutoField(primary_key=True, serialize=False)),
                ('event_id', models.CharField(max_length=30)),
                ('environment_id', models.CharField(max_length=30)),
                ('cluster', models.CharField(editable=False, max_length=40, null=True)),
                ('type', models.CharField(max_length=120)),
                ('data', models.TextField()),
                ('request_id', models.CharField(max_length=64, null=True)),
                ('depth', models.SmallIntegerField(db_default=0)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('relayed_at', models.DateTimeField(null=True)),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('relayed_at__isnull', True)), fields=['cluster', 'sequence'], name='control_event_waiting')],
                'constraints': [models.UniqueConstraint(fields=('event_id',), name='control_event_once')],
            },
        ),
        migrations.CreateModel(
            name='Member',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('mem',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('role', models.CharField(choices=[('owner', 'Owner'), ('developer', 'Developer'), ('viewer', 'Viewer')], max_length=10)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.CreateModel(
            name='Project',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('prj',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=64)),
                ('region', models.CharField(choices=[('us-east-1', 'us-east-1'), ('eu-west-1', 'eu-west-1'), ('ap-southeast-1', 'ap-southeast-1')], default='us-east-1', max_length=20)),
                ('cluster', models.CharField(max_length=40)),
                ('plan', models.CharField(choices=[('free', 'Free'), ('pro', 'Pro'), ('team', 'Team')], default='free', max_length=10)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('deleted_at', models.DateTimeField(editable=False, null=True)),
                ('suspended_at', models.DateTimeField(editable=False, null=True)),
                ('suspension_reason', models.CharField(editable=False, max_length=500, null=True)),
                ('resumed_at', models.DateTimeField(editable=False, null=True)),
                ('created_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='created_projects', to=settings.AUTH_USER_MODEL)),
                ('members', models.ManyToManyField(related_name='projects', through='projects.Member', to=settings.AUTH_USER_MODEL)),
            ],
        ),
        migrations.AddField(
            model_name='member',
            name='project',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='projects.project'),
        ),
        migrations.CreateModel(
            name='Environment',
            fields=[
                ('id', models.CharField(default=functools.partial(platform_site.identity.ids.new, *('env',), **{}), editable=False, max_length=30, primary_key=True, serialize=False)),
                ('name', models.CharField(max_length=48)),
                ('status', models.CharField(choices=[('creating', 'Creating'), ('ready', 'Ready'), ('migrating', 'Migrating'), ('failed', 'Failed'), ('deleting', 'Deleting')], default='creating', max_length=10)),
                ('status_reason', models.TextField(blank=True, null=True)),
                ('filled_from', models.CharField(choices=[('source', 'Source'), ('archive', 'Archive')], editable=False, max_length=10, null=True)),
                ('pool_id', models.CharField(max_length=30)),
                ('allowed_origins', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), blank=True, default=list, size=None)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('parent', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='branches', to='projects.environment')),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='environments', to='projects.project')),
            ],
        ),
        migrations.AddIndex(
            model_name='project',
            index=models.Index(fields=['-created_at', '-id'], name='project_newest_first'),
        ),
        migrations.AddIndex(
            model_name='project',
            index=models.Index(condition=models.Q(('suspended_at__isnull', False)), fields=['suspended_at'], name='project_by_suspension'),
        ),
        migrations.AddIndex(
            model_name='project',
            index=models.Index(condition=models.Q(('deleted_at__isnull', False)), fields=['deleted_at'], name='project_marked_for_deletion'),
        ),
        migrations.AddConstraint(
            model_name='project',
            constraint=models.CheckConstraint(condition=models.Q(('region__in', ['us-east-1', 'eu-west-1', 'ap-southeast-1'])), name='project_region_is_known'),
        ),
        migrations.AddConstraint(
            model_name='project',
            constraint=models.CheckConstraint(condition=models.Q(('plan__in', ['free', 'pro', 'team'])), name='project_plan_is_known'),
        ),
        migrations.AddConstraint(
            model_name='project',
            constraint=models.CheckConstraint(condition=models.Q(('name__regex', '\\S')), name='project_name_not_blank'),
        ),
        migrations.AddConstraint(
            model_name='project',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('suspended_at__isnull', True), ('suspension_reason__isnull', True)), models.Q(('suspended_at__isnull', False), ('suspension_reason__isnull', False), ('suspension_reason__regex', '\\S')), _connector='OR'), name='project_suspension_has_reason'),
        ),
        migrations.AddConstraint(
            model_name='member',
            constraint=models.UniqueConstraint(fields=('project', 'user'), name='member_once_per_project'),
        ),
        migrations.AddConstraint(
            model_name='member',
            constraint=models.CheckConstraint(condition=models.Q(('role__in', ['owner', 'developer', 'viewer'])), name='member_role_is_known'),
        ),
        migrations.AddIndex(
            model_name='environment',
            index=models.Index(condition=models.Q(('status__in', ['creating', 'migrating', 'deleting'])), fields=['status', 'id'], name='environment_unsettled'),
        ),
        migrations.AddConstraint(
            model_name='environment',
            constraint=models.UniqueConstraint(condition=models.Q(('status', 'deleting'), _negated=True), fields=('project', 'name'), name='environment_name_unique_in_project'),
        ),
        migrations.RunSQL(
            """
            CREATE FUNCTION projects_set_cluster_of_event() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                NEW.cluster := (SELECT p.cluster FROM projects_environment e
                                  JOIN projects_project p ON p.id = e.project_id WHERE e.id = NEW.environment_id);
                RETURN NEW;
            END $$;
            CREATE TRIGGER control_event_cluster BEFORE INSERT ON projects_controlevent
            FOR EACH ROW EXECUTE FUNCTION projects_set_cluster_of_event();
            """,
            """
            DROP TRIGGER control_event_cluster ON projects_controlevent;
            DROP FUNCTION projects_set_cluster_of_event();
            """,
        ),
    ]
