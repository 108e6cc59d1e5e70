from django.apps import AppConfig

from platform_site import celery  # noqa: F401 - tasks need the Celery application


class PlatformSiteConfig(AppConfig):
    name = "platform_site"
    verbose_name = "Metrics"  # the only pages of this app in the console

    def ready(self) -> None:
        import platform_site.checks
        import platform_site.console.metrics_admin  # noqa: F401 - importing registers checks and pages
        from platform_site.observability import lag

        lag.register()
