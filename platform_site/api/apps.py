from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "platform_site.api"
    label = "api"

    def ready(self) -> None:
        from platform_site.api import checks, health, logs  # noqa: F401 - importing checks registers them

        logs.connect_celery()
        health.register_own()
