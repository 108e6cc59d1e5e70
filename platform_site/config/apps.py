from django.apps import AppConfig


class ConfigConfig(AppConfig):
    name = "platform_site.config"
    label = "config"

    def ready(self) -> None:
        from platform_site.config import stored_plans
        from platform_site.config.merge import merge_bases
        from platform_site.config.models import ConfigVersion, MergeBase, StoredPlan
        from platform_site.identity import signals
        from projects.provisioning import orphaned_rows

        orphaned_rows.register(StoredPlan, MergeBase, ConfigVersion)
        signals.environment_branched.connect(merge_bases.follow_branch, dispatch_uid="config.follow_branch")
        signals.environment_reset.connect(merge_bases.follow_branch, dispatch_uid="config.follow_reset")
        signals.environment_deleted.connect(stored_plans.forget_environment, dispatch_uid="config.forget_environment")
