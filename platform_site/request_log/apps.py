from django.apps import AppConfig


class RequestLogConfig(AppConfig):
    name = "platform_site.request_log"
    label = "request_log"

    def ready(self) -> None:
        from platform_site.identity import signals
        from platform_site.request_log import partitions

        signals.environment_deleted.connect(partitions.forget_environment, dispatch_uid="request_log.forget")
