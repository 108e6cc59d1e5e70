import secrets
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from platform_site import env
from platform_site.embedded.data_dir import Layout

BASE_DIR = Path(__file__).resolve().parent.parent.parent
DATA_DIR = Path(env.text("DATA_DIR") or BASE_DIR / ".data").resolve()
LAYOUT = Layout(DATA_DIR)
_generated = LAYOUT.read_secrets()

PLATFORM_MODE = env.choice("PLATFORM_MODE", ("development", "production"), "development")
PRODUCTION = PLATFORM_MODE == "production"
DEBUG = False  # always: its error pages show settings and sources


def _secret(variable: str, generated: str) -> str:
    """From the environment, the data directory, or (in development, before the first `up`) random."""
    value = env.text(variable) or _generated.get(generated)
    if value:
        return value
    if PRODUCTION:
        raise ImproperlyConfigured(f"{variable} must be set when PLATFORM_MODE=production")
    return secrets.token_hex(32)


SECRET_KEY = _secret("SECRET_KEY", "secret_key")
SECRET_KEY_FALLBACKS = env.words("SECRET_KEY_FALLBACKS")
ENCRYPTION_KEYS = [key for key in _secret("ENCRYPTION_KEYS", "encryption_key").split(",") if key]

PLATFORM_DOMAIN = env.domain("PLATFORM_DOMAIN", "localhost")
ALLOWED_HOSTS = env.hosts(
    "ALLOWED_HOSTS", ["localhost", ".localhost", "127.0.0.1", "[::1]", PLATFORM_DOMAIN, f".{PLATFORM_DOMAIN}"]
)
TRUSTED_PROXIES = env.words("TRUSTED_PROXIES")
BASE_URL = env.origin("BASE_URL", f"https://{PLATFORM_DOMAIN}" if PRODUCTION else "http://127.0.0.1:8000")
CSRF_TRUSTED_ORIGINS = env.origins("CSRF_TRUSTED_ORIGINS", [BASE_URL])

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

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "builtins": ["platform_site.templatetags.developer_console"],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]
STATIC_URL = "static/"
STATIC_ROOT = Path(env.text("STATIC_ROOT") or BASE_DIR / "staticfiles")
WHITENOISE_USE_FINDERS = not STATIC_ROOT.is_dir()
LANGUAGE_CODE = "en"
USE_I18N = False
TIME_ZONE = "UTC"
FORMAT_MODULE_PATH = "platform_site.formats"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
