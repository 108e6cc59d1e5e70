from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0006_project_suspended"),
    ]

    operations = [
        migrations.AlterField(
            model_name="accountemail",
            name="kind",
            field=models.CharField(
                choices=[
                    ("sign_up", "Sign Up"),
                    ("invitation", "Invitation"),
                    ("member_invitation", "Member Invitation"),
                    ("verify_email", "Verify Email"),
                    ("reset_password", "Reset Password"),
                    ("change_email", "Change Email"),
                    ("email_changed", "Email Changed"),
                    ("password_changed", "Password Changed"),
                    ("identity_linked", "Identity Linked"),
                    ("project_suspended", "Project Suspended"),
                    ("project_resumed", "Project Resumed"),
                ],
                max_length=20,
            ),
        ),
        migrations.AddField(
            model_name="accountemail",
            name="project_id",
            field=models.CharField(blank=True, max_length=30, null=True),
        ),
    ]
