from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "webhooks"

    def ready(self) -> None:
        from platform_site.security.keyring import register_sealed_field
        from projects.directory.limits import set_usage_counter
        from projects.provisioning import orphaned_rows
        from rows.outbox import subscriptions
        from rows.transfer.backup_content import registered_parts
        from webhooks import signal_handlers
        from webhooks.delivery.signing import SECRET_PURPOSE
        from webhooks.models import Webhook
        from webhooks.subscriptions import service as webhook_service
        from webhooks.subscriptions.backup import Subscriptions

        register_sealed_field("webhooks.Webhook", "sealed_secret", purpose=SECRET_PURPOSE)
        register_sealed_field("webhooks.Webhook", "sealed_previous_secret", purpose=SECRET_PURPOSE)
        set_usage_counter("webhooks_per_environment", webhook_service.count_webhooks)
        registered_parts["webhooks"] = Subscriptions()
        subscriptions.register(webhook_service.patterns_of)
        orphaned_rows.register(Webhook, only="deleted_at IS NULL")  # deleted ones are removed within minutes
        signal_handlers.connect()
