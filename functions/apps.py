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
        from projects.limits import set_usage_counter, set_usage_counters
        from rows import interests
        from rows.backups import register_part

        register_sealed_field("functions.Secret", "sealed_value", purpose=SECRET_PURPOSE)
        set_usage_counter("functions_per_environment", services.count_functions)
        set_usage_counter("schedules_per_environment", schedules.count_schedules)
        set_usage_counter("event_functions_per_environment", subscriptions.count_subscriptions)
        set_usage_counters(("queued_runs", "queued_bytes"), admission.used)
        set_usage_counters(("visitor_queued_runs", "visitor_queued_bytes"), runs.waiting_visits)
        openings.register(functions=services.public_functions)
        register_part("functions", Functions())
        leftovers.register(Function, Heard)
        interests.register(subscriptions.patterns_of)
        interests.register_taker(heard.Hearing)
        hooks.connect()
