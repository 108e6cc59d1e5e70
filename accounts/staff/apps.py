from django.apps import AppConfig


class StaffConfig(AppConfig):
    name = "accounts.staff"
    label = "staff"

    def ready(self) -> None:
        from django.contrib.auth.signals import user_logged_in, user_logged_out
        from django.db.models.signals import post_migrate

        from accounts.staff import models, roles, sessions
        from platform_site.security.keyring import register_sealed_field

        register_sealed_field("staff.TotpDevice", "sealed_key", purpose=models.KEY_PURPOSE)
        user_logged_in.connect(sessions.begin, dispatch_uid="staff.begin_session")
        user_logged_out.connect(sessions.end, dispatch_uid="staff.end_session")
        post_migrate.connect(roles.sync_after_migrate, dispatch_uid="staff.sync_groups")
