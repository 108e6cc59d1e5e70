"""Django with only the platform's server: the minimum cost of a request."""

from platform_site.settings import *  # noqa: F403

ROOT_URLCONF = "tests.benchmarks.bare_urls"
MIDDLEWARE = ["django.middleware.security.SecurityMiddleware", "django.middleware.common.CommonMiddleware"]
DATABASES: dict[str, dict[str, str]] = {}
DATABASE_ROUTERS: list[str] = []
