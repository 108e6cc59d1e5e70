from platform_site import env

METRICS_TOKEN = env.text("METRICS_TOKEN")
LOG_FORMAT = env.choice("LOG_FORMAT", ("json", "text"), "json")
LOG_LEVEL = env.choice("LOG_LEVEL", ("DEBUG", "INFO", "WARNING", "ERROR"), "INFO")
_formatters = "platform_site.observability.logs." + LOG_FORMAT.capitalize()
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": f"{_formatters}Formatter"}, "access": {"()": f"{_formatters}AccessFormatter"}},
    "filters": {"failed_tasks": {"()": "platform_site.observability.logs.FailedTasks"}},
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "line", "level": LOG_LEVEL},
        "access": {"class": "platform_site.observability.logs.AccessHandler", "formatter": "access"},
    },
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        "platform.access": {"handlers": ["access"], "level": LOG_LEVEL, "propagate": False},
        "django": {"handlers": [], "level": "INFO", "propagate": True},
        # Without a line for each periodic job, every few seconds; failures are logged anyway.
        **{f"celery.{name}": {"level": "WARNING"} for name in ("beat", "worker.strategy")},
        "celery.app.trace": {"level": "WARNING", "filters": ["failed_tasks"]},
        # The access log has every status, and `platform.errors` refused hosts: these loggers only add tracebacks.
        "django.request": {"level": "ERROR"},
        "django.security.DisallowedHost": {"level": "CRITICAL"},
    },
}
