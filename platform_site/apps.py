from django.apps import AppConfig

from platform_site import celery  # noqa: F401 - with Django comes Celery's application, so that tasks find it


class PlatformSiteConfig(AppConfig):
    name = "platform_site"
    verbose_name = "Metrics"  # all that the console shows of this app

    def ready(self) -> None:
        import platform_site.checks
        import platform_site.console.metrics_admin  # noqa: F401 - importing registers checks and pages
        from platform_site.observability import lag

        lag.register()
