from django.apps import AppConfig


class WebhooksConfig(AppConfig):
    name = "webhooks"

    def ready(self) -> None:
        from platform_site.api.keyring import register_sealed_field
        from projects import leftovers
        from projects.limits import set_usage_counter
        from rows import interests
        from rows.backups import register_part
        from webhooks import hooks, services
        from webhooks.archive import Subscriptions
        from webhooks.attempts import SECRET_PURPOSE
        from webhooks.models import Webhook

        register_sealed_field("webhooks.Webhook", "sealed_secret", purpose=SECRET_PURPOSE)
        register_sealed_field("webhooks.Webhook", "sealed_previous_secret", purpose=SECRET_PURPOSE)
        set_usage_counter("webhooks_per_environment", services.count_webhooks)
        register_part("webhooks", Subscriptions())
        interests.register(services.patterns_of)
        leftovers.register(Webhook, only="deleted_at IS NULL")  # the others go within minutes
        hooks.connect()
