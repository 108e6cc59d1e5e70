from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "platform_site.http"
    label = "api"

    def ready(self) -> None:
        from platform_site.http.models import IDEMPOTENCY_PURPOSE
        from platform_site.http.site import health
        from platform_site.observability import logs
        from platform_site.security.keyring import register_sealed_field

        register_sealed_field("api.IdempotencyRecord", "sealed_answer", purpose=IDEMPOTENCY_PURPOSE)
        logs.connect_celery()
        health.register_own()
