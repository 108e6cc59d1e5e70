from datetime import timedelta

from django.core.exceptions import ImproperlyConfigured

from platform_site import env

WEBHOOK_RETRY_SCHEDULE = tuple(
    timedelta(seconds=seconds) for seconds in env.numbers("WEBHOOK_RETRY_SCHEDULE", minimum=0)
)
WEBHOOK_LEASE = timedelta(seconds=env.number("WEBHOOK_LEASE_SECONDS", 30, minimum=1, maximum=3600))
WEBHOOK_TIMEOUT_SECONDS = env.number("WEBHOOK_TIMEOUT_SECONDS", 15, minimum=0.1, maximum=600)
if WEBHOOK_LEASE.total_seconds() < 2 * WEBHOOK_TIMEOUT_SECONDS:
    raise ImproperlyConfigured(
        f"WEBHOOK_LEASE_SECONDS ({WEBHOOK_LEASE.total_seconds():g}) must be at least twice WEBHOOK_TIMEOUT_SECONDS"
        f" ({WEBHOOK_TIMEOUT_SECONDS:g}): another worker would send again what is still being sent"
    )
WEBHOOK_DISABLE_AFTER = timedelta(days=env.number("WEBHOOK_DISABLE_AFTER_DAYS", 5, minimum=0, maximum=3650))
WEBHOOK_RETENTION = timedelta(days=env.number("WEBHOOK_RETENTION_DAYS", 30, minimum=1, maximum=3650))
WEBHOOK_JOB_SECONDS = env.number("WEBHOOK_JOB_SECONDS", 2, minimum=0.1, maximum=3600)
