from django.apps import AppConfig


class FunctionsConfig(AppConfig):
    name = "functions"

    def ready(self) -> None:
        from accounts import openings
        from functions import checks, hooks, runs, schedules, services  # noqa: F401 - importing checks registers them
        from functions.archive import Functions
        from functions.executor import SECRET_PURPOSE
        from functions.models import Function
        from platform_site.api.keyring import register_sealed_field
        from projects import leftovers
        from projects.limits import set_usage_counter
        from rows.backups import register_part

        register_sealed_field("functions.Secret", "sealed_value", purpose=SECRET_PURPOSE)
        set_usage_counter("functions_per_environment", services.count_functions)
        set_usage_counter("schedules_per_environment", schedules.count_schedules)
        set_usage_counter("visitor_queued_runs", runs.count_waiting_visits)
        set_usage_counter("visitor_queued_bytes", runs.count_waiting_bytes)
        openings.register(functions=services.public_functions)
        register_part("functions", Functions())
        leftovers.register(Function)
        hooks.connect()
