from django.apps import AppConfig


class FunctionsConfig(AppConfig):
    name = "functions"

    def ready(self) -> None:
        from accounts.keys import publishable_key_exposure

        # Importing checks registers them.
        from functions import checks, directory, signal_handlers  # noqa: F401
        from functions.deploy.backup import Functions
        from functions.execution.executor import SECRET_PURPOSE
        from functions.models import Function, PendingEvent
        from functions.quotas import anonymous_queue, queue_quotas
        from functions.triggers import event_subscriptions, schedules
        from functions.triggers.pending_events import PendingEventWriter
        from platform_site.request_log import names
        from platform_site.security.keyring import register_sealed_field
        from projects.directory.limits import set_usage_counter, set_usage_counters
        from projects.provisioning import orphaned_rows
        from rows.outbox import subscriptions as outbox_subscriptions
        from rows.transfer.backup_content import registered_parts

        register_sealed_field("functions.Secret", "sealed_value", purpose=SECRET_PURPOSE)
        set_usage_counter("functions_per_environment", directory.count_functions)
        set_usage_counter("schedules_per_environment", schedules.count_schedules)
        set_usage_counter("event_functions_per_environment", event_subscriptions.count_subscriptions)
        set_usage_counters(("queued_runs", "queued_bytes"), queue_quotas.used)
        set_usage_counters(("visitor_queued_runs", "visitor_queued_bytes"), anonymous_queue.waiting)
        publishable_key_exposure.register(directory.public_functions)
        registered_parts["functions"] = Functions()
        orphaned_rows.register(Function, PendingEvent)
        outbox_subscriptions.register(event_subscriptions.patterns_of)
        outbox_subscriptions.consumer_factories.append(PendingEventWriter)
        names.register("function", directory.existing_functions)
        signal_handlers.connect()
