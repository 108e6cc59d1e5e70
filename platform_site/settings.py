"""All settings. A fresh clone runs with no variable set; production sets those in docs/how-to/deployment.md.

What is unset falls back to the embedded services of the data dir (`platform_site.embedded.data_dir`).
"""

import secrets
import socket
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from csp.constants import NONCE
from django.core.exceptions import ImproperlyConfigured

from platform_site import env
from platform_site.embedded.data_dir import REGIONS, Layout, region_database, region_variable

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(env.text("DATA_DIR") or BASE_DIR / ".data").resolve()
LAYOUT = Layout(DATA_DIR)
_generated = LAYOUT.read_secrets()

# ── Mode ────────────────────────────────────────────────────────────────────────────────────────────────────────────
PLATFORM_MODE = env.choice("PLATFORM_MODE", ("development", "production"), "development")
PRODUCTION = PLATFORM_MODE == "production"
DEBUG = False  # never: error pages with settings and sources have no place on a machine that holds others' data


def _secret(variable: str, generated: str) -> str:
    """A secret from the environment, else from the data dir, else (development, before the first `up`) a random one."""
    value = env.text(variable) or _generated.get(generated)
    if value:
        return value
    if PRODUCTION:
        raise ImproperlyConfigured(f"{variable} must be set when PLATFORM_MODE=production")
    return secrets.token_hex(32)


SECRET_KEY = _secret("SECRET_KEY", "secret_key")
SECRET_KEY_FALLBACKS = env.words("SECRET_KEY_FALLBACKS")
"""Earlier secrets: console sessions and cursors made with them are still read."""
ENCRYPTION_KEYS = [key for key in _secret("ENCRYPTION_KEYS", "encryption_key").split(",") if key]
"""64 hex digits each; the first encrypts, all decrypt (`platform_site.security.keyring`)."""

# ── Addresses ───────────────────────────────────────────────────────────────────────────────────────────────────────
PLATFORM_DOMAIN = env.text("PLATFORM_DOMAIN", "localhost") or "localhost"
ALLOWED_HOSTS = env.words(
    "ALLOWED_HOSTS", ["localhost", ".localhost", "127.0.0.1", "[::1]", PLATFORM_DOMAIN, f".{PLATFORM_DOMAIN}"]
)
TRUSTED_PROXIES = env.words("TRUSTED_PROXIES")
"""Networks whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed."""
BASE_URL = env.origin("BASE_URL", f"https://{PLATFORM_DOMAIN}" if PRODUCTION else "http://127.0.0.1:8000")
CSRF_TRUSTED_ORIGINS = env.words("CSRF_TRUSTED_ORIGINS", [BASE_URL])

# ── Applications ────────────────────────────────────────────────────────────────────────────────────────────────────
INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "corsheaders",
    "rest_framework",
    "django_filters",
    "django_htmx",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "platform_site",
    "platform_site.http",
    "platform_site.request_log",
    "django_otp",
    "accounts",
    "accounts.staff",
    "projects",
    "rows",
    "webhooks",
    "functions",
    "platform_site.config",
]
ROOT_URLCONF = "platform_site.urls"
APPEND_SLASH = False
MIDDLEWARE = [
    # Answers /v1 by itself; the rest is for the console and other pages (docs/explanation/architecture.md).
    "platform_site.http.middleware.api.ApiMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "platform_site.http.site.pages.ContentSecurityPolicy",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "platform_site.http.middleware.csrf.CsrfMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django_otp.middleware.OTPMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "accounts.staff.sessions.ConsoleSessions",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]
# ── The server bridge (platform_site.server) ────────────────────────────────────────────────────────────────────────
LANE_THREADS = env.integer("LANE_THREADS", 16, minimum=1, maximum=1000)
"""At most so many threads of one web process; all but one are there because the others wait for something."""
LANE_PATIENCE = env.number("LANE_PATIENCE_MS", 10, minimum=1, maximum=60_000) / 1000
"""Seconds that a waiting request gives the running one before another thread joins."""
LANE_ASIDE = env.integer("LANE_ASIDE", 8, minimum=0, maximum=1000)
"""So many requests of one process that said that they will wait (`platform_site.concurrency.server_hints`) are passed
by at once."""
LANE_LONGEST_WAIT = env.number("LANE_LONGEST_WAIT_MS", 2000, minimum=50, maximum=600_000) / 1000
"""Seconds until a request that no thread took is answered 503."""

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
STATIC_ROOT = Path(env.text("STATIC_ROOT") or BASE_DIR / "staticfiles")
WHITENOISE_USE_FINDERS = not STATIC_ROOT.is_dir()
"""Without `collectstatic`, files are served from the packages they come with."""
LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"
FORMAT_MODULE_PATH = "platform_site.formats"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# ── HTTP ────────────────────────────────────────────────────────────────────────────────────────────────────────────
MAX_BODY_BYTES = 1_048_576
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_BODY_BYTES
SECURE_SSL_REDIRECT = env.boolean("SECURE_SSL_REDIRECT", PRODUCTION)
"""People are redirected to https, machines are refused; https is what the connection or a trusted proxy says it is."""
SECURE_HSTS_SECONDS = env.integer("SECURE_HSTS_SECONDS", 31_536_000 if PRODUCTION else 0, minimum=0)
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = SECURE_HSTS_SECONDS > 0
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = PRODUCTION
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_PATH = CSRF_COOKIE_PATH = "/admin/"
CSRF_COOKIE_HTTPONLY = True
CSRF_FAILURE_VIEW = "platform_site.http.site.pages.csrf_failure"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'none'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "font-src": ["'self'"],
        "connect-src": ["'self'"],
        "form-action": ["'self'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
    }
}
"""For pages; JSON answers have a policy of their own that allows nothing (`platform_site.http.middleware.api`)."""
CONSOLE_CONTENT_SECURITY_POLICY = {
    "script-src": ["'self'", "'unsafe-eval'"],
    "style-src": ["'self'", NONCE],
    "style-src-attr": ["'unsafe-inline'"],
}
"""What the console's toolkit needs on top: Alpine compiles its attributes, menus have style attributes, and the theme's
colours stand in one style element, which `platform_site.http.site.pages` gives the page's nonce."""
PLATFORM_ORIGINS = env.words("PLATFORM_ORIGINS")
"""Web origins that may use the API with a platform account's token; an environment's origins are its own affair."""
CORS_URLS_REGEX = r"^/(?:v1|\.well-known)/"
CORS_ALLOW_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
CORS_ALLOW_HEADERS = [
    "authorization",
    "content-type",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "last-event-id",
    "prefer",
    "x-environment",
    "x-request-id",
]
CORS_EXPOSE_HEADERS = [
    "ETag",
    "Location",
    "Retry-After",
    "RateLimit",
    "RateLimit-Policy",
    "X-Request-Id",
    "Idempotency-Replayed",
]
CORS_PREFLIGHT_MAX_AGE = 7200
METRICS_TOKEN = env.text("METRICS_TOKEN")
"""Protects /metrics. Without a token it is open to loopback clients only, and in production to no client."""
LOG_FORMAT = env.choice("LOG_FORMAT", ("json", "text"), "json")
LOG_LEVEL = env.choice("LOG_LEVEL", ("DEBUG", "INFO", "WARNING", "ERROR"), "INFO")
_formatters = "platform_site.observability.logs." + LOG_FORMAT.capitalize()
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": f"{_formatters}Formatter"}, "access": {"()": f"{_formatters}AccessFormatter"}},
    "filters": {"failed_tasks": {"()": "platform_site.observability.logs.FailedTasks"}},
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "line"},
        "access": {"class": "platform_site.observability.logs.AccessHandler", "formatter": "access"},
    },
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        "platform.access": {"handlers": ["access"], "level": "INFO", "propagate": False},
        "django": {"handlers": [], "level": "INFO", "propagate": True},
        # Sweeps come every few seconds; their coming and going is no news, and their failures are logged all the same.
        **{f"celery.{name}": {"level": "WARNING"} for name in ("beat", "worker.strategy")},
        "celery.app.trace": {"level": "WARNING", "filters": ["failed_tasks"]},
        # The access log has every status, and `platform.errors` what became of a host: of these only traces are news.
        "django.request": {"level": "ERROR"},
        "django.security.DisallowedHost": {"level": "CRITICAL"},
    },
}
CALLER_AUTHENTICATION = "projects.api.authentication.CallerAuthentication"
"""Turns a request into a `Caller`; `platform_site.http.views` imports it by this name when the first request comes."""
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "DEFAULT_PARSER_CLASSES": ["platform_site.http.bodies.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "platform_site.http.openapi.description.ApiSchema",
    "DEFAULT_METADATA_CLASS": None,
    "UNAUTHENTICATED_USER": None,
    "UNAUTHENTICATED_TOKEN": None,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}

SPECTACULAR_SETTINGS = {
    "OAS_VERSION": "3.1.0",
    "TITLE": "Backend platform",
    "DESCRIPTION": "Projects, sign-in, rows under rules, signed webhooks and functions, over HTTP with JSON bodies.\n\n"
    "Follow the [quick start](/docs/guides/tutorials/quick-start), or look up an "
    "[error code](/docs/guides/reference/errors). To try an endpoint here, paste a server key (`sk_…`) or an access "
    "token under *Authorize*. An account names its environment in the header `X-Environment`.",
    # In the order in which one needs them.
    "TAGS": [
        {"name": "projects", "description": "Projects, environments, preview branches, members"},
        {"name": "auth", "description": "Signing in and up, sessions, one's own account"},
        {"name": "keys", "description": "Server keys"},
        {"name": "schema", "description": "Tables and rules, as one document"},
        {"name": "rows", "description": "Reading and writing rows"},
        {"name": "webhooks", "description": "Events, signed and delivered"},
        {"name": "functions", "description": "Code that runs as its caller"},
        {"name": "users", "description": "An application's users"},
        {"name": "invitations", "description": "Users who are asked in by e-mail"},
        {"name": "identity-providers", "description": "Sign-in by other providers"},
        {"name": "redirect-uris", "description": "Where a sign-in by another provider may come back to"},
        {"name": "limits", "description": "What the plan allows, and what is used"},
        {"name": "well-known", "description": "Keys that verify access tokens"},
    ],
    "VERSION": "1",
    "SERVERS": [{"url": "/"}],
    "SCHEMA_PATH_PREFIX": "/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "SORT_OPERATION_PARAMETERS": False,
    "GET_LIB_DOC_EXCLUDES": "platform_site.http.openapi.description.generic_view_classes",
    "POSTPROCESSING_HOOKS": [
        "platform_site.http.openapi.description.add_components",
        "platform_site.http.openapi.examples.add",
    ],
}

# ── Databases ───────────────────────────────────────────────────────────────────────────────────────────────────────
STATEMENT_TIMEOUT_MS = env.integer("STATEMENT_TIMEOUT_MS", 5000, minimum=100)
AGGREGATE_STATEMENT_TIMEOUT_MS = env.integer("AGGREGATE_STATEMENT_TIMEOUT_MS", 2000, minimum=100)
LOCK_TIMEOUT_MS = env.integer("LOCK_TIMEOUT_MS", 2000, minimum=50)
IDLE_IN_TRANSACTION_TIMEOUT_MS = env.integer("IDLE_IN_TRANSACTION_TIMEOUT_MS", 10_000, minimum=1000)
"""A session that says nothing for so long inside a transaction is ended, and its locks with it."""
DATABASE_SILENCE_SECONDS = env.integer("DATABASE_SILENCE_SECONDS", 4, minimum=1, maximum=120)
"""A connection whose other end has acknowledged nothing for so long is given up: its host or the way there is gone. A
slow query is not silence, since the server's kernel answers for it. Linux sends no more than 127 probes."""
SCHEMA_LOCK_TIMEOUT_MS = env.integer("SCHEMA_LOCK_TIMEOUT_MS", 200, minimum=10, maximum=600_000)
"""How long a schema change waits for tables in use, and readers behind it, before it lets go and tries again."""
SCHEMA_LOCK_ATTEMPTS = env.integer("SCHEMA_LOCK_ATTEMPTS", 10, minimum=1, maximum=1000)
SCHEMA_STATEMENT_TIMEOUT_MS = env.integer("SCHEMA_STATEMENT_TIMEOUT_MS", 60_000, minimum=1000)
SCHEMA_LARGE_TABLE_ROWS = env.integer("SCHEMA_LARGE_TABLE_ROWS", 100_000, minimum=0)
"""From this size on, indexes are made after the change, while rows are served (`rows.migrate.concurrent_indexes`)."""


PREPARED_STATEMENTS = env.boolean("DATABASE_PREPARED_STATEMENTS", True)
"""Off where a pooler does not carry them over (PgBouncer before 1.21, or with `max_prepared_statements=0`)."""

TABLES_PER_CONNECTION = env.integer("TABLES_PER_CONNECTION", 2_000, minimum=1)
"""A region's connection that has met so many tenant tables is replaced by a fresh one
(`platform_site.postgres.prepared`)."""


def _direct_variable(name: str) -> str:
    """`DATABASE_DIRECT_URL` of `DATABASE_URL`, and so on."""
    return name.removesuffix("_URL") + "_DIRECT_URL"


def _direct_databases() -> dict[str, dict[str, Any]]:
    """Who and where of each database whose ordinary URL leads through a pooler (`platform_site.fastpath.libpq`)."""
    names = {"default": "DATABASE_URL", **{region: region_variable(region) for region in REGIONS}}
    variables = {alias: _direct_variable(name) for alias, name in names.items()}
    parts = {alias: env.postgres(name, url) for alias, name in variables.items() if (url := env.text(name))}
    return {
        alias: {key: value for key, value in found.items() if not key.startswith("OPTIONS:")}
        for alias, found in parts.items()
    }


DIRECT_DATABASES = _direct_databases()


def _database(
    name: str, url: str, search_path: str, *, prepare_threshold: int | None, session: dict[str, str] | None = None
) -> dict[str, Any]:
    """`session` has settings of the session beside those that all have, or in their place."""
    parts = env.postgres(name, url)
    libpq = {key.removeprefix("OPTIONS:"): parts.pop(key) for key in list(parts) if key.startswith("OPTIONS:")}
    settings_of_the_session = {
        "search_path": search_path,
        "statement_timeout": f"{STATEMENT_TIMEOUT_MS}",
        "lock_timeout": f"{LOCK_TIMEOUT_MS}",
        "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_TIMEOUT_MS}",
        "jit": "off",
        "max_parallel_workers_per_gather": "0",
        # The server frees what a vanished host held (advisory locks of periodic jobs, for example) within some 20 s.
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "2",
        "tcp_user_timeout": "20000",
        **(session or {}),
    }
    return parts | {
        "ENGINE": "platform_site.postgres",
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": True,
        # A cursor that outlives its transaction is a session's, which a pooler does not keep.
        "DISABLE_SERVER_SIDE_CURSORS": env.text(_direct_variable(name)) is not None,
        "OPTIONS": {
            "connect_timeout": 2,
            # The first two end the wait for an answer that is not coming, the last that for a statement to arrive.
            "keepalives_idle": 2,
            "keepalives_interval": 1,
            "keepalives_count": max(1, DATABASE_SILENCE_SECONDS - 2),
            "tcp_user_timeout": DATABASE_SILENCE_SECONDS * 1000,
            "application_name": "backend-platform",
            "options": " ".join(f"-c {key}={value}" for key, value in settings_of_the_session.items()),
            # Bind in the server and let psycopg prepare what recurs: 50-60 µs a statement.
            "server_side_binding": True,
            "prepare_threshold": prepare_threshold if PREPARED_STATEMENTS else None,
            **libpq,
        },
    }


REGION_DATABASES = list(REGIONS)
DATABASES = {
    "default": _database(
        "DATABASE_URL", env.text("DATABASE_URL") or LAYOUT.postgres_url("control"), "public", prepare_threshold=2
    ),
    **{
        region: _database(
            region_variable(region),
            env.text(region_variable(region)) or LAYOUT.postgres_url(region_database(region)),
            "platform",
            # `platform_site.postgres.prepared` prepares by itself: psycopg answers a rollback with DEALLOCATE ALL, of
            # those too.
            prepare_threshold=None,
        )
        for region in REGIONS
    },
}
REPLICA_LAG_LIMIT = env.number("REPLICA_LAG_LIMIT_MS", 1000, minimum=100) / 1000
"""Seconds. A replica that may be further behind its primary answers nothing."""


def _replicas(region: str) -> dict[str, dict[str, Any]]:
    """The replicas of a region, by the name that logs and metrics use."""
    name = region_variable(region).removesuffix("_URL") + "_REPLICA_URLS"
    session = {
        "default_transaction_read_only": "on",
        # Who waits for a lock there waits for a schema change to be replayed.
        "lock_timeout": f"{min(LOCK_TIMEOUT_MS, int(REPLICA_LAG_LIMIT * 1000))}",
    }
    return {
        f"{region}-replica-{number}": _database(name, url, "platform", prepare_threshold=None, session=session)
        for number, url in enumerate(env.postgres_urls(name), 1)
    }


REPLICAS = {region: found for region in REGIONS if (found := _replicas(region))}
"""For each region that has some, its read replicas (`platform_site.postgres.replicas`)."""
DATABASE_ROUTERS = ["platform_site.postgres.routers.RegionRouter"]

# ── Redis ───────────────────────────────────────────────────────────────────────────────────────────────────────────
REDIS_URL = env.text("REDIS_URL") or LAYOUT.redis_url()
REDIS_TIMEOUT = 0.2
"""Seconds that one request waits for Redis in all (reliability: no request hangs on it)."""
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},  # not used by our own code
    "ratelimit": {"BACKEND": "platform_site.redis.ratelimit_cache.RateLimitCache"},
}
RATE_LIMIT_FACTOR = env.number("RATE_LIMIT_FACTOR", 1, minimum=0, maximum=1_000_000)
"""Multiplies every threshold of `platform_site.identity.plans`, for load tests: the limiter stays in the path."""
# django-ratelimit's own settings, all named: it asks for each of them on each request, and a default costs more.
RATELIMIT_ENABLE = True
RATELIMIT_USE_CACHE = "ratelimit"
RATELIMIT_CACHE_PREFIX = "rl:"
RATELIMIT_HASH_ALGORITHM = sha256
RATELIMIT_FAIL_OPEN = True

# ── Projects ────────────────────────────────────────────────────────────────────────────────────────────────────────
JOB_SECONDS = env.number("JOB_SECONDS", 30, minimum=1, maximum=3600)
"""How often a worker looks for what a crash left behind (`platform_site.background.periodic`)."""
ORPHAN_GRACE_SECONDS = env.integer("ORPHAN_GRACE_SECONDS", 60, minimum=0)
"""A PostgreSQL schema that no environment owns, or a row that names one, is removed when it is older than this."""
DELETION_GRACE_SECONDS = env.integer("DELETION_GRACE_SECONDS", 10, minimum=0)
"""The periodic job takes over a deletion that is older than this; until then the request or a worker does it."""
BRANCH_AT_ONCE_BYTES = env.integer("BRANCH_AT_ONCE_BYTES", 4 * 1024 * 1024, minimum=0)
"""Up to so many bytes of rows a preview branch is filled before its creation is answered, more by a worker."""
BRANCH_GIVE_UP_SECONDS = env.integer("BRANCH_GIVE_UP_SECONDS", 6 * 3600, minimum=1)
"""A branch that could not be filled for that long is called failed."""
FAILPOINT = env.text("FAILPOINT", "")
"""Where tests of crashes end the process (`projects.provisioning.failpoints`). Never set otherwise."""

# ── Outgoing calls ──────────────────────────────────────────────────────────────────────────────────────────────────
OUTBOUND_ALLOWED_NETWORKS = env.words("OUTBOUND_ALLOWED_NETWORKS")
"""Networks that webhooks and functions may call though they are not public, such as `127.0.0.0/8` for development."""

# ── Celery ──────────────────────────────────────────────────────────────────────────────────────────────────────────
# Kombu's words for a Unix socket and for the number of its database.
CELERY_BROKER_URL = REDIS_URL.replace("unix://", "redis+socket://", 1)
if CELERY_BROKER_URL.startswith("redis+socket://"):
    CELERY_BROKER_URL = CELERY_BROKER_URL.replace("?db=", "?virtual_host=")
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CHANNEL_ERROR_RETRY = True
"""What Redis answers ends no worker either: that it is full, or has become a replica."""
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_TASK_ROUTES = {"webhooks.tasks.*": {"queue": "webhooks"}, "functions.tasks.*": {"queue": "functions"}}
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "ack_emulation": False,  # see platform_site.celery
    "socket_timeout": 5,
    "socket_connect_timeout": 1,
    "retry_on_timeout": True,
    # A worker waits for messages without a deadline; the kernel's timers notice a Redis that vanished without a word.
    "socket_keepalive": True,
    "socket_keepalive_options": {
        getattr(socket, name): value
        for name, value in {
            "TCP_KEEPIDLE": 5,
            "TCP_KEEPINTVL": 2,
            "TCP_KEEPCNT": 3,
            "TCP_USER_TIMEOUT": 10_000,
        }.items()
        if hasattr(socket, name)
    },
}
CELERY_BEAT_SCHEDULE: dict[str, dict[str, Any]] = {}

# ── Sign-in ─────────────────────────────────────────────────────────────────────────────────────────────────────────
AUTH_USER_MODEL = "accounts.User"
PASSWORD_HASHERS = ["accounts.users.passwords.Argon2idHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "accounts.staff.password_validators.NotBlank"},
    {"NAME": "accounts.staff.password_validators.NotTooLong"},
    {
        "NAME": "accounts.staff.password_validators.NotLikeTheUser",
        "OPTIONS": {"user_attributes": ("email", "name")},
    },
    {"NAME": "accounts.staff.password_validators.LongEnough", "OPTIONS": {"min_length": 8}},
    {"NAME": "accounts.staff.password_validators.NotCommon"},
    {"NAME": "accounts.staff.password_validators.ChangeEndsSessions"},
]
AUTHENTICATION_BACKENDS = ["accounts.staff.backends.PlatformAccountBackend"]
SIMPLE_JWT = {
    # The codec of accounts.tokens.access_tokens; sessions, refresh tokens and keys are our own.
    "ALGORITHM": "ES256",
    "SIGNING_KEY": "",
    "ACCESS_TOKEN_LIFETIME": timedelta(seconds=900),
    "ISSUER": BASE_URL,
    "AUDIENCE": f"{BASE_URL}/v1",
    "LEEWAY": 10,
    "TOKEN_TYPE_CLAIM": "typ",
    "JTI_CLAIM": "jti",
    "USER_ID_CLAIM": "sub",
}
SILENCED_SYSTEM_CHECKS = [
    "auth.W004",  # e-mail is unique per pool; the backend looks in the platform's own
    "security.W003",  # `platform_site.http.middleware.csrf` is a subclass of Django's middleware
]

# ── E-mail (`accounts.registration`)
# ───────────────────────────────────────────────────────────────────────────────────
EMAIL_HOST = env.text("EMAIL_HOST", "")
EMAIL_BACKEND = env.text("EMAIL_BACKEND") or (
    # Without a server, e-mails are shown by the process that sends them: under `up`, in its terminal. Never in
    # production, where that is a log: a reader of an e-mail can use its link.
    "django.core.mail.backends.smtp.EmailBackend"
    if PRODUCTION or EMAIL_HOST
    else "accounts.registration.console_email_backend.EmailBackend"
)
EMAIL_USE_SSL = env.boolean("EMAIL_USE_SSL")
"""TLS from the first byte, as on port 465."""
EMAIL_USE_TLS = env.boolean("EMAIL_USE_TLS", PRODUCTION and not EMAIL_USE_SSL)
"""STARTTLS, as on port 587."""
EMAIL_PORT = env.integer(
    "EMAIL_PORT", 465 if EMAIL_USE_SSL else 587 if EMAIL_USE_TLS else 25, minimum=1, maximum=65_535
)
EMAIL_HOST_USER = env.text("EMAIL_HOST_USER", "")
EMAIL_HOST_PASSWORD = env.text("EMAIL_HOST_PASSWORD", "")
EMAIL_TIMEOUT = env.number("EMAIL_TIMEOUT", 10, minimum=1, maximum=600)
"""Seconds for each step of the conversation with the server."""
DEFAULT_FROM_EMAIL = SERVER_EMAIL = env.text("DEFAULT_FROM_EMAIL") or f"Backend platform <no-reply@{PLATFORM_DOMAIN}>"
EMAIL_JOB_SECONDS = env.number("EMAIL_JOB_SECONDS", 10, minimum=1, maximum=3600)

# ── Webhooks ────────────────────────────────────────────────────────────────────────────────────────────────────────
WEBHOOK_RETRY_SCHEDULE = tuple(
    timedelta(seconds=seconds) for seconds in env.numbers("WEBHOOK_RETRY_SCHEDULE", minimum=0)
)
"""Waits in seconds before attempt 1, 2, …; empty: `webhooks.delivery.retry.SCHEDULE`. Fault tests compress it."""
WEBHOOK_LEASE = timedelta(seconds=env.number("WEBHOOK_LEASE_SECONDS", 30, minimum=1, maximum=3600))
WEBHOOK_TIMEOUT_SECONDS = env.number("WEBHOOK_TIMEOUT_SECONDS", 15, minimum=0.1, maximum=600)
"""For a whole attempt, which begins in the first half of its lease and has to end in the second."""
if WEBHOOK_LEASE.total_seconds() < 2 * WEBHOOK_TIMEOUT_SECONDS:
    raise ImproperlyConfigured(
        f"WEBHOOK_LEASE_SECONDS ({WEBHOOK_LEASE.total_seconds():g}) must be at least twice WEBHOOK_TIMEOUT_SECONDS"
        f" ({WEBHOOK_TIMEOUT_SECONDS:g}): another worker would send again what is still being sent"
    )
WEBHOOK_PATIENCE = timedelta(days=env.number("WEBHOOK_PATIENCE_DAYS", 5, minimum=0, maximum=3650))
"""A webhook whose receiver has done nothing but fail for that long is disabled."""
WEBHOOK_RETENTION = timedelta(days=env.number("WEBHOOK_RETENTION_DAYS", 30, minimum=1, maximum=3650))
WEBHOOK_JOB_SECONDS = env.number("WEBHOOK_JOB_SECONDS", 2, minimum=0.1, maximum=3600)

# ── Console ─────────────────────────────────────────────────────────────────────────────────────────────────────────
CONSOLE_IDLE_SECONDS = env.integer("CONSOLE_IDLE_SECONDS", 3600, minimum=60)
"""A console session ends so long after its last click …"""
CONSOLE_SESSION_SECONDS = env.integer("CONSOLE_SESSION_SECONDS", 12 * 3600, minimum=60)
"""… and so long after signing in, whatever happened in between."""
SESSION_COOKIE_AGE = CONSOLE_SESSION_SECONDS
CONSOLE_REQUIRE_TOTP = env.boolean("CONSOLE_REQUIRE_TOTP", False)
"""Whether staff without a second factor get no further than the page that sets one up."""
UNFOLD = {
    "SITE_TITLE": "Backend platform",
    "SITE_HEADER": "Backend platform",
    "SITE_SUBHEADER": PLATFORM_MODE,
    "SITE_SYMBOL": "deployed_code",
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": "platform_site.console.favicon"}],
    "SITE_URL": "/docs",
    "SHOW_HISTORY": False,  # Django's own log of the console; the audit trail says more
    "SHOW_BACK_BUTTON": True,
    "DASHBOARD_CALLBACK": "platform_site.console.dashboard",
    "COLORS": {
        "primary": {
            "50": "oklch(97.1% 0.014 166)",
            "100": "oklch(94.1% 0.042 166)",
            "200": "oklch(89.1% 0.082 164)",
            "300": "oklch(82.1% 0.122 164)",
            "400": "oklch(74.1% 0.142 163)",
            "500": "oklch(65.1% 0.138 163)",
            "600": "oklch(55.1% 0.118 163)",
            "700": "oklch(47.1% 0.098 164)",
            "800": "oklch(40.1% 0.081 165)",
            "900": "oklch(34.1% 0.066 166)",
            "950": "oklch(24.1% 0.046 168)",
        }
    },
    "STYLES": ["platform_site.console.styles"],
    "ACCOUNT": {"navigation": "platform_site.console.account_links"},
    "SIDEBAR": {"show_search": True, "command_search": True, "navigation": "platform_site.console.navigation"},
    "COMMAND": {"search_models": False, "search_callback": "platform_site.console.search.search"},
}

# ── Functions ───────────────────────────────────────────────────────────────────────────────────────────────────────
FUNCTION_POOL_SIZE = env.integer("FUNCTION_POOL_SIZE", 16, minimum=1, maximum=1000)
"""Deno processes of one web or worker process, idle and running ones; about 40 MB each."""
FUNCTION_IDLE_SECONDS = env.number("FUNCTION_IDLE_SECONDS", 120, minimum=1)
FUNCTION_MAX_CALLS = env.integer("FUNCTION_MAX_CALLS", 10_000, minimum=1)
"""Then a process is retired."""
FUNCTION_POOL_WAIT = env.number("FUNCTION_POOL_WAIT", 2, minimum=0, maximum=600)
"""Seconds that a call waits for a place in a full pool."""
FUNCTION_LOAD_SECONDS = env.number("FUNCTION_LOAD_SECONDS", 10, minimum=0.1, maximum=600)
"""What the top level of a module may take when it is loaded."""
FUNCTION_WORKER_THREADS = env.integer("FUNCTION_WORKER_THREADS", 12, minimum=1, maximum=1000)
"""Queued runs of a region that one worker process executes at the same time."""
FUNCTION_LEASE = timedelta(seconds=env.number("FUNCTION_LEASE_SECONDS", 20, minimum=2, maximum=3600))
"""After so long without a sign of life from its process a run counts as lost. Renewed four times as often."""
FUNCTION_REQUIRED_SANDBOX_LAYERS = env.words("FUNCTION_REQUIRED_SANDBOX_LAYERS")
"""Walls (`functions.runtime.sandbox.SANDBOX_LAYERS`) without which no function runs on this host; `check` names those
it lacks."""
FUNCTION_JOB_SECONDS = env.number("FUNCTION_JOB_SECONDS", 2, minimum=0.1, maximum=3600)
