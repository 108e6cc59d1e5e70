from csp.constants import NONCE

from platform_site import env
from platform_site.settings.base import PRODUCTION

WEB_THREADS = env.integer("WEB_THREADS", 16, minimum=1, maximum=1000)
WEB_THREAD_STUCK = env.number("WEB_THREAD_STUCK_MS", 10, minimum=1, maximum=60_000) / 1000
WEB_THREADS_WAITING = env.integer("WEB_THREADS_WAITING", 8, minimum=0, maximum=1000)
WEB_QUEUE_TIMEOUT = env.number("WEB_QUEUE_TIMEOUT_MS", 2000, minimum=50, maximum=600_000) / 1000

FASTPATH = env.boolean("FASTPATH", True)

MAX_BODY_BYTES = 1_048_576
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_BODY_BYTES
SECURE_SSL_REDIRECT = env.boolean("SECURE_SSL_REDIRECT", PRODUCTION)
SECURE_HSTS_SECONDS = env.integer("SECURE_HSTS_SECONDS", 31_536_000 if PRODUCTION else 0, minimum=0)
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = SECURE_HSTS_SECONDS > 0
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = PRODUCTION
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
"""For pages; JSON has its own (`platform_site.http.middleware.api`)."""
CONSOLE_CONTENT_SECURITY_POLICY = {
    "script-src": ["'self'", "'unsafe-eval'"],
    "style-src": ["'self'", NONCE],
    "style-src-attr": ["'unsafe-inline'"],
}
"""For the console's toolkit: Alpine's attributes, style attributes, and the theme's style element."""
PLATFORM_ORIGINS = ["*"] if env.text("PLATFORM_ORIGINS") == "*" else env.origins("PLATFORM_ORIGINS")
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
