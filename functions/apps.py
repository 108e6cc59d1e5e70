from django.apps import AppConfig


class FunctionsConfig(AppConfig):
    name = "functions"

    def ready(self) -> None:
        from accounts import openings

        # Importing checks registers them.
        from functions import admission, checks, heard, hooks, runs, schedules, services, subscriptions  # noqa: F401
        from functions.archive import Functions
        from functions.executor import SECRET_PURPOSE
        from functions.models import Function, Heard
        from platform_site.api.keyring import register_sealed_field
        from projects import leftovers
        from projects.limits import set_usage_counter
        from rows import interests
        from rows.backups import register_part

        register_sealed_field("functions.Secret", "sealed_value", purpose=SECRET_PURPOSE)
        set_usage_counter("functions_per_environment", services.count_functions)
        set_usage_counter("schedules_per_environment", schedules.count_schedules)
        set_usage_counter("event_functions_per_environment", subscriptions.count_subscriptions)
        set_usage_counter("queued_runs", admission.count_waiting)
        set_usage_counter("queued_bytes", admission.count_bytes)
        set_usage_counter("visitor_queued_runs", runs.count_waiting_visits)
        set_usage_counter("visitor_queued_bytes", runs.count_waiting_bytes)
        openings.register(functions=services.public_functions)
        register_part("functions", Functions())
        leftovers.register(Function, Heard)
        interests.register(subscriptions.patterns_of)
        interests.register_taker(heard.Hearing)
        hooks.connect()
