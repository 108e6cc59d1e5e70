from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0005_identity_linked'),
    ]

    operations = [
        migrations.AlterField(
            model_name='accountemail',
            name='kind',
            field=models.CharField(choices=[('sign_up', 'Sign Up'), ('invitation', 'Invitation'), ('verify_email', 'Verify Email'), ('reset_password', 'Reset Password'), ('change_email', 'Change Email'), ('email_changed', 'Email Changed'), ('password_changed', 'Password Changed'), ('identity_linked', 'Identity Linked'), ('project_suspended', 'Project Suspended'), ('project_resumed', 'Project Resumed')], max_length=20),
        ),
    ]
