from datetime import timedelta

from platform_site import env
from platform_site.settings.base import BASE_URL, PLATFORM_DOMAIN, PRODUCTION

AUTH_USER_MODEL = "accounts.User"
PASSWORD_HASHERS = ["accounts.users.passwords.Argon2idHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "accounts.staff.password_validators.NotBlank"},
    {"NAME": "accounts.staff.password_validators.NotTooLong"},
    {"NAME": "accounts.staff.password_validators.NotLikeTheUser", "OPTIONS": {"user_attributes": ("email", "name")}},
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
    "auth.W004",  # email is unique per pool; the backend only searches the platform's pool
    "security.W003",  # `platform_site.http.middleware.csrf` is a subclass of Django's middleware
]

EMAIL_HOST = env.server("EMAIL_HOST")
EMAIL_BACKEND = env.text("EMAIL_BACKEND") or (
    # Without a server, emails are shown by the process that sends them: under `up`, in its terminal. Never in
    # production, where that is a log: a reader of an email can use its link.
    "django.core.mail.backends.smtp.EmailBackend"
    if PRODUCTION or EMAIL_HOST
    else "accounts.registration.console_email_backend.EmailBackend"
)
EMAIL_USE_SSL = env.boolean("EMAIL_USE_SSL")
EMAIL_USE_TLS = env.boolean("EMAIL_USE_TLS", PRODUCTION and not EMAIL_USE_SSL)
EMAIL_PORT = env.integer(
    "EMAIL_PORT", 465 if EMAIL_USE_SSL else 587 if EMAIL_USE_TLS else 25, minimum=1, maximum=65_535
)
EMAIL_HOST_USER = env.text("EMAIL_HOST_USER", "")
EMAIL_HOST_PASSWORD = env.text("EMAIL_HOST_PASSWORD", "")
EMAIL_TIMEOUT = env.number("EMAIL_TIMEOUT", 10, minimum=1, maximum=600)
DEFAULT_FROM_EMAIL = SERVER_EMAIL = env.text("DEFAULT_FROM_EMAIL") or f"Backend platform <no-reply@{PLATFORM_DOMAIN}>"
EMAIL_JOB_SECONDS = env.number("EMAIL_JOB_SECONDS", 10, minimum=1, maximum=3600)
