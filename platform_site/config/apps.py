from django.apps import AppConfig


class ConfigConfig(AppConfig):
    name = "platform_site.config"
    label = "config"

    def ready(self) -> None:
        from platform_site.config import plans
        from platform_site.config.models import StoredPlan
        from platform_site.identity import signals
        from projects.provisioning import orphaned_rows

        orphaned_rows.register(StoredPlan)
        signals.environment_deleted.connect(plans.forget_environment, dispatch_uid="config.forget_environment")
