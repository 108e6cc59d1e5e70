import socket
from hashlib import sha256

from platform_site import env
from platform_site.settings.base import LAYOUT

REDIS_URL = env.redis("REDIS_URL", env.text("REDIS_URL") or LAYOUT.redis_url())
REDIS_TIMEOUT = 0.2
"""Seconds that one request waits for Redis in all (reliability: no request hangs on it)."""
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},  # not used by our own code
    "ratelimit": {"BACKEND": "platform_site.redis.rate_limits.CounterNames"},
}
RATE_LIMIT_FACTOR = env.number("RATE_LIMIT_FACTOR", 1, minimum=0, maximum=1_000_000)
RATELIMIT_ENABLE = True
RATELIMIT_USE_CACHE = "ratelimit"
RATELIMIT_CACHE_PREFIX = "rl:"
RATELIMIT_HASH_ALGORITHM = sha256
RATELIMIT_FAIL_OPEN = True

# Kombu has its own URL scheme for Unix sockets, and its own parameter for the database number.
CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://", 1)
if CELERY_BROKER_URL.startswith("redis+socket://"):
    CELERY_BROKER_URL = CELERY_BROKER_URL.replace("?db=", "?virtual_host=")
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CHANNEL_ERROR_RETRY = True
"""So that workers also survive error replies: Redis is full, or has become a replica."""
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_TASK_ROUTES = {"webhooks.tasks.*": {"queue": "webhooks"}, "functions.tasks.*": {"queue": "functions"}}
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "ack_emulation": False,  # see platform_site.celery
    "socket_timeout": 5,
    "socket_connect_timeout": 1,
    "retry_on_timeout": True,
    # Workers wait for messages without a deadline. Keepalive detects a Redis host that is gone.
    "socket_keepalive": True,
    "socket_keepalive_options": {
        getattr(socket, name): value
        for name, value in {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 10_000}.items()
        if hasattr(socket, name)
    },
}
