from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "platform_site.http"
    label = "api"

    def ready(self) -> None:
        from platform_site.http.site import health
        from platform_site.observability import logs

        logs.connect_celery()
        health.register_own()
